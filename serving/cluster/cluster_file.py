"""`cluster.toml`: the processes of a model that several machines serve; see docs/cluster.md."""

import re
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from kernels.wording import did_you_mean
from serving.config.server_config import ServerConfig
from serving.config.setting import DeclaredSetting, declared_settings
from serving.config.shard_host_settings import SHARD_HOST_SETTINGS
from serving.remote_lookups.hosts_file import HostsTls
from sharded_infer.byte_sizes import parse_size
from sharded_infer.errors import InputError
from sharded_infer.files.toml_file import read_toml

_STRICT = ConfigDict(extra="forbid")
FRONT_SETTINGS = declared_settings(ServerConfig)
# A DNS name, short enough for suffixes (RFC 1123: 63 characters).
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_ADDRESSES = ("host", "port", "http_port", "unix_socket", "http_unix_socket", "admin_address")


def _bytes_of(value: object) -> int:
    try:
        return parse_size(value if isinstance(value, str) else "", "size")
    except InputError as error:
        raise ValueError("expected a size such as '70GB'") from error


def _name_of(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("expected 1 to 40 of a-z, 0-9 and -, a letter first")
    return value


Bytes = Annotated[int, BeforeValidator(_bytes_of)]
Name = Annotated[str, AfterValidator(_name_of)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1, le=1000)]
Cpus = Annotated[float, Field(gt=0, le=1024)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Security:
    """Authentication and trusted keys, as settings of `serve`; files relative to `cluster.toml`."""

    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    tokens_file: str | None = None
    trusted_key: str | None = None
    insecure: bool = False

    @property
    def files(self) -> dict[str, str]:
        """Named files, by setting."""
        return {name: file for name, file in asdict(self).items() if isinstance(file, str)}


@dataclass(frozen=True, slots=True, config=_STRICT)
class FrontsSection:
    """The fronts, which are all alike: bytes of one, port for gRPC, other settings of `serve`."""

    memory: Bytes
    count: Count = 1
    cpus: Cpus = 1.0
    port: Port | None = None
    http_port: Port | None = None
    security: Security = Security()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, config=_STRICT)
class ShardHostsSection:
    """Settings that all shard hosts share; `settings` has others of `serve-shards`."""

    port: Port | None = None
    http_port: Port | None = None
    security: Security = Security()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, config=_STRICT)
class HostSection:
    """A host of the plan: replicas on different machines, each with `memory` bytes."""

    memory: Bytes
    replicas: Count = 1
    cpus: Cpus = 1.0


@dataclass(frozen=True, slots=True, config=_STRICT)
class LookupsSection:
    """Calls of fronts to shard hosts, as in a hosts file; files relative to `cluster.toml`."""

    timeout_ms: Annotated[float, Field(gt=0, le=3.6e6)] = 1000.0
    token_file: str | None = None
    tls: HostsTls | None = None


@dataclass(frozen=True, slots=True, config=_STRICT)
class RaySection:
    """Address of Ray's head; `auto` is that of this machine."""

    address: str = "auto"


@dataclass(frozen=True, slots=True, config=_STRICT)
class ClusterFile:
    """The contents of the file; the name is a prefix of all that is created.

    Hosts are by number in the plan; fronts hold the rows of the one that is left out. Without
    models all of the repository are served, without a topology each version's first.
    """

    name: Name
    repository: str
    fronts: FrontsSection
    hosts: Annotated[dict[Annotated[int, Field(ge=0, le=4095)], HostSection], Field(min_length=1)]
    models: tuple[str, ...] = ()
    topology: str | None = None
    shard_hosts: ShardHostsSection = ShardHostsSection()
    lookups: LookupsSection = LookupsSection()
    ray: RaySection = RaySection()


_ADAPTER = TypeAdapter(ClusterFile)
_SECURITY = {field.name for field in fields(Security)}
# Settings that other fields of the file set.
_SET_ELSEWHERE = {"repository", "model", "topology", "shard_hosts", *_ADDRESSES, *_SECURITY}


def read_cluster(path: Path) -> ClusterFile:
    """Read and check the file; InputError names the field, what was expected and what came."""
    document = read_toml(path, str(path), InputError)
    try:
        cluster = _ADAPTER.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"] if step != "[key]")
        said = "" if first["type"] == "missing" else f", got {first['input']!r}"
        words = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{path}: {where}: {words}{said}") from error
    for name, section, declared in (
        ("fronts", cluster.fronts, FRONT_SETTINGS),
        ("shard_hosts", cluster.shard_hosts, SHARD_HOST_SETTINGS),
    ):
        _check_settings(f"{path}: {name}.settings", declared, section.settings)
        _check_security(f"{path}: {name}.security", section.security)
    security, lookups = cluster.shard_hosts.security, cluster.lookups
    tls = lookups.tls
    if tls is not None:
        _check_both_or_neither(f"{path}: lookups.tls.certificate and key", tls.certificate, tls.key)
    where = f"{path}: lookups.tls and shard_hosts.security.tls_certificate"
    _check_both_or_neither(where, tls, security.tls_certificate)
    if security.tokens_file is not None and lookups.token_file is None:
        raise InputError(
            f"{path}: lookups.token_file: expected the token that shard_hosts.security.tokens_file "
            "asks of fronts, got none"
        )
    return cluster


def _check_settings(
    where: str, declared: Mapping[str, DeclaredSetting], settings: Mapping[str, Any]
) -> None:
    allowed = [name for name in declared if name not in _SET_ELSEWHERE]
    for name, value in settings.items():
        if name in _SET_ELSEWHERE:
            raise InputError(f"{where}.{name}: other fields of this file say it")
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            raise InputError(f"{where}.{name}: expected a setting of the command, got none{hint}")
        declared[name].check(value, where)


def _check_security(where: str, security: Security) -> None:
    _check_both_or_neither(
        f"{where}.tls_certificate and tls_key", security.tls_certificate, security.tls_key
    )
    if not (security.files.keys() - {"trusted_key"} or security.insecure):
        raise InputError(
            f"{where}: others reach these addresses: expected tls_certificate and tls_key, "
            "tokens_file, or insecure = true, got none"
        )


def _check_both_or_neither(where: str, first: object, second: object) -> None:
    if (first is None) is not (second is None):
        raise InputError(f"{where}: expected both or neither, got one")
