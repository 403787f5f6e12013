"""Servers of the compiled client, and its limits."""

from dataclasses import dataclass
from pathlib import Path

from serving.abi.client import EndpointSettings
from sharded_infer.errors import InputError

_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server at HOST:PORT, all of whose addresses are tried, or unix:PATH; errors use `name`.

    `server_name` is required in its certificate; "": the host of the address.
    """

    address: str
    name: str
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files of a client's TLS, read anew at a connection when they have changed."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of servers' answers and times.

    Attributes:
        header_bytes: of an answer with its trailers.
        connect_seconds: for TCP and TLS to one of an endpoint's addresses.
        keepalive_seconds: wait of calls on a silent connection before a ping.
        least_backoff_seconds: after the second connection in a row that brought no answer.
    """

    answer_bytes: int = 64 * 2**20
    header_bytes: int = 16 * 2**10
    connect_seconds: float = 5.0
    keepalive_seconds: float = 5.0
    keepalive_timeout_seconds: float = 5.0
    least_backoff_seconds: float = 0.1
    most_backoff_seconds: float = 5.0


def endpoint_struct(endpoint: Endpoint) -> EndpointSettings:
    """A server for compiled code; raises InputError for an invalid address."""
    if endpoint.address.startswith(_UNIX):
        host, port, authority = None, endpoint.address.removeprefix(_UNIX), "localhost"
    else:
        host, _, port = endpoint.address.rpartition(":")
        host, authority = host.removeprefix("[").removesuffix("]"), endpoint.address
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise InputError(
                f"{endpoint.name}: expected HOST:PORT or unix:PATH, got {endpoint.address!r}"
            )
    return EndpointSettings(
        name=endpoint.name.encode(),
        host=None if host is None else host.encode(),
        port=port.encode(),
        authority=authority.encode(),
        server_name=(endpoint.server_name or host or "localhost").encode(),
    )
