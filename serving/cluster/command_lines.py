"""The command lines of a cluster's processes, and the hosts file that its fronts read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.cluster.cluster_file import (
    FRONT_SETTINGS,
    ClusterFile,
    FrontsSection,
    ShardHostsSection,
)
from serving.config.setting import flag_of
from serving.config.shard_host_settings import SHARD_HOST_SETTINGS
from sharded_infer.files.toml_file import toml_text


def process_command(
    cluster: ClusterFile, host: int | None, hosts_file: Path, folder: Path, address: str
) -> list[str]:
    """Command line of a front (None), from `serve` on, or a host's replica, from `serve-shards` on.

    The folder is that of `cluster.toml`, the address the one to listen on.
    """
    section: FrontsSection | ShardHostsSection
    if host is None:
        words = ["serve", f"--shard-hosts={hosts_file}"]
        section, declared, cpus = cluster.fronts, FRONT_SETTINGS, cluster.fronts.cpus
    else:
        words = ["serve-shards", f"--host-number={host}"]
        section, declared, cpus = cluster.shard_hosts, SHARD_HOST_SETTINGS, cluster.hosts[host].cpus
    repository, security, settings = cluster.repository, section.security, section.settings
    if "://" not in repository:
        repository = str(folder / repository)
    words += [
        f"--repository={repository}",
        f"--host={address}",
        f"--port={section.port or 0}",
        f"--http-port={section.http_port or 0}",
        "--json",
    ]
    words += [f"--model={model}" for model in cluster.models]
    if cluster.topology is not None:
        words.append(f"--topology={cluster.topology}")
    words += [f"{flag_of(name)}={folder / file}" for name, file in security.files.items()]
    if security.insecure:
        words.append("--insecure")
    for name, value in settings.items():
        flag = declared[name].flag
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"{flag}={text}" for text in values]
    if "slots" not in settings:
        # As many batches at once as processors: Ray counts these, and limits nothing.
        words.append(f"--slots={max(1, int(cpus) // settings.get('workers', 1))}")
    return words


def hosts_text(cluster: ClusterFile, folder: Path, addresses: Mapping[int, Sequence[str]]) -> str:
    """Text of the hosts file, from the addresses of each host's replicas."""
    lookups = cluster.lookups
    values: dict[str, Any] = {"timeout_ms": lookups.timeout_ms}
    if lookups.token_file is not None:
        values["token_file"] = str(folder / lookups.token_file)
    if (tls := lookups.tls) is not None:
        named = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
        values["tls"] = {name: str(folder / file) for name, file in named.items() if file}
    values["hosts"] = {
        str(number): listed[0] if len(listed) == 1 else list(listed)
        for number, listed in sorted(addresses.items())
    }
    return toml_text(values)
