"""Protection checks of a server that other machines can reach."""

import logging

from serving.config.server_config import ServerConfig
from serving.host.addresses import is_loopback, split_address
from serving.security.guard import read_credentials
from serving.security.tls import tls_files
from sharded_infer.errors import InputError

_log = logging.getLogger("sharded_infer")


def check_protection(config: ServerConfig) -> None:
    """Refuses an unprotected public server, and unusable files.

    Raises:
        InputError: a public address without TLS, tokens or `insecure`, or certificates or tokens
            that cannot be read.
    """
    public = public_addresses(config)
    files = tls_files(config)
    if public and files is None and not config.has_tokens:
        where = " and ".join(public)
        if not config.insecure:
            raise InputError(
                f"{where}: others reach this address, and nothing says who may call: set "
                "--tls-certificate and --tls-key, or --tokens-file, or listen on 127.0.0.1; "
                "--insecure lets everybody in (docs/security.md)"
            )
        _log.warning("insecure: everybody who reaches %s may call, unencrypted", where)
    elif public and files is None:
        _log.warning(
            "tokens without TLS: anyone on the network path to %s can read them",
            " and ".join(public),
        )
    if files is not None:
        files.server_context()
    read_credentials(config)


def public_addresses(config: ServerConfig) -> list[str]:
    """Addresses that other machines can reach."""
    hosts = [config.host]
    if config.admin_address is not None and config.admin_socket is None:
        hosts.append(split_address(config.admin_address)[0])
    return [host for host in dict.fromkeys(hosts) if not is_loopback(host)]


def protection_of(config: ServerConfig) -> str:
    """Text about who may call."""
    words = []
    if config.tls_client_ca is not None:
        words.append("mTLS")
    elif config.tls_certificate is not None:
        words.append("TLS")
    if config.has_tokens:
        words.append("tokens")
    if config.rate_limit is not None:
        words.append(f"{config.rate_limit:g} calls/s a client and worker")
    if config.tls_certificate is None and not config.has_tokens:
        reach = "everybody (insecure)" if public_addresses(config) else "this machine alone"
        words.insert(0, reach)
    return ", ".join(words)
