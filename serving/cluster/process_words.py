"""The command lines of a cluster's processes, and the hosts file that its fronts read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.cluster.cluster_file import FRONT_SETTINGS, ClusterFile, Security
from serving.config.setting import DeclaredSetting, flag_of
from serving.config.shard_host_settings import SHARD_HOST_SETTINGS
from sharded_infer.files.toml_file import toml_text

# Where a file that `cluster.toml` names lies for the process.
Place = Callable[[str], str]


def shard_host_words(
    cluster: ClusterFile, number: int, *, host: str, port: int, http_port: int, place: Place
) -> list[str]:
    """The command line of a replica of a host, from `serve-shards` on.

    Args:
        number: the host's in the plan.
        host: the address to listen on.
        port: for lookups; 0: any.
        http_port: 0: any.
    """
    section = cluster.shard_hosts
    return [
        "serve-shards",
        f"--host-number={number}",
        f"--http-port={http_port}",
        *_common(cluster, host, port, section.security, place),
        *_settings(SHARD_HOST_SETTINGS, section.settings),
    ]


def front_words(
    cluster: ClusterFile, *, host: str, port: int, http_port: int, hosts_file: str, place: Place
) -> list[str]:
    """The command line of a front, from `serve` on.

    Args:
        host: the address to listen on.
        port: for gRPC; 0: any.
        http_port: 0: any.
    """
    section = cluster.fronts
    return [
        "serve",
        f"--shard-hosts={hosts_file}",
        f"--http-port={http_port}",
        *_common(cluster, host, port, section.security, place),
        *_settings(FRONT_SETTINGS, section.settings),
    ]


def hosts_text(cluster: ClusterFile, addresses: Mapping[int, Sequence[str]], place: Place) -> str:
    """The hosts file.

    Args:
        addresses: of each host's replicas.
    """
    lookups = cluster.lookups
    values: dict[str, Any] = {"timeout_ms": lookups.timeout_ms}
    if lookups.token_file is not None:
        values["token_file"] = place(lookups.token_file)
    if (tls := lookups.tls) is not None:
        named = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
        values["tls"] = {name: place(file) for name, file in named.items() if file is not None}
    values["hosts"] = {
        str(number): listed[0] if len(listed) == 1 else list(listed)
        for number, listed in sorted(addresses.items())
    }
    return toml_text(values)


def _common(
    cluster: ClusterFile, host: str, port: int, security: Security, place: Place
) -> list[str]:
    repository = cluster.repository
    if "://" not in repository:
        repository = place(repository)
    words = [f"--repository={repository}", f"--host={host}", f"--port={port}"]
    words += [f"--model={model}" for model in cluster.models]
    if cluster.topology is not None:
        words.append(f"--topology={cluster.topology}")
    words += [f"{flag_of(name)}={place(file)}" for name, file in security.files.items()]
    if security.insecure:
        words.append("--insecure")
    return words


def _settings(declared: Mapping[str, DeclaredSetting], settings: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        flag = declared[name].flag
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif isinstance(value, list):
            words += [f"{flag}={one}" for one in value]
        else:
            words.append(f"{flag}={value}")
    return words
