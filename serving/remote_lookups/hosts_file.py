"""The file that names a front's shard hosts.

token_file = "token"

[hosts]
1 = "10.0.0.2:8001"
2 = ["10.0.0.3:8001", "10.0.0.4:8001"]  # replicas

[tls]
ca = "ca.pem"
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from serving.transport.client_settings import ClientTls
from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import read_regular
from sharded_infer.files.toml_file import read_toml

_STRICT = ConfigDict(extra="forbid")
_MOST_TOKEN_BYTES = 64 * 2**10


def _replicas(value: object) -> object:
    """Validate the addresses of a host's replicas; a single one may stand alone."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ValueError(f"expected an address or a list of addresses, got {value!r}")
    if not listed:
        raise ValueError("expected at least one address, got none")
    if len(set(listed)) != len(listed):
        raise ValueError(f"expected different addresses, got {listed}")
    return tuple(listed)


@dataclass(frozen=True, slots=True, config=_STRICT)
class HostsTls:
    """PEM files for connections to the hosts, relative to the file that names them."""

    ca: str
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, config=_STRICT)
class HostsFile:
    """Replicas' HOST:PORT or unix:PATH by number in the plans, and time limit of a lookup.

    The token file is relative to this file.
    """

    hosts: dict[Annotated[int, Field(ge=0)], Annotated[tuple[str, ...], BeforeValidator(_replicas)]]
    timeout_ms: Annotated[float, Field(gt=0, le=3.6e6)] = 1000.0
    token_file: str | None = None
    tls: HostsTls | None = None


_ADAPTER = TypeAdapter(HostsFile)


def read_hosts(path: Path) -> HostsFile:
    """Read the file; InputError, naming the field, if it is unreadable or wrong."""
    found = read_toml(path, str(path), InputError)
    try:
        hosts = _ADAPTER.validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        words = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{path}: {where}: {words}") from error
    if not hosts.hosts:
        raise InputError(f"{path}: hosts: expected at least one, got none")
    if hosts.tls is not None and (hosts.tls.certificate is None) is not (hosts.tls.key is None):
        raise InputError(f"{path}: tls.certificate and tls.key: expected both or neither, got one")
    return hosts


class HostSettings(NamedTuple):
    """Replicas' HOST:PORT or unix:PATH by number of a remote host, and time limit of a lookup."""

    addresses: Mapping[int, tuple[str, ...]]
    seconds: float
    tls: ClientTls | None = None
    token: str | None = None


def read_settings(path: Path) -> HostSettings:
    """Read the file and its token file; InputError as `read_hosts`, or without one token."""
    hosts = read_hosts(path)
    return HostSettings(
        hosts.hosts, hosts.timeout_ms / 1000, _tls_of(hosts, path), _token_of(hosts, path)
    )


def _tls_of(hosts: HostsFile, path: Path) -> ClientTls | None:
    if hosts.tls is None:
        return None
    certificate, key = hosts.tls.certificate, hosts.tls.key
    return ClientTls(
        path.parent / hosts.tls.ca,
        None if certificate is None else path.parent / certificate,
        None if key is None else path.parent / key,
    )


def _token_of(hosts: HostsFile, path: Path) -> str | None:
    if hosts.token_file is None:
        return None
    file = path.parent / hosts.token_file
    try:
        token = read_regular(file, _MOST_TOKEN_BYTES, follow=True).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    if not token or len(token.split()) != 1:
        raise InputError(f"{file}: expected one token, got {len(token.split())} words")
    return token
