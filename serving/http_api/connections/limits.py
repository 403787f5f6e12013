"""The limits of HTTP clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of HTTP clients.

    Attributes:
        max_connections: for each process. Beyond, an idle connection is evicted; if none is idle, a
            further one may only call the probes.
        max_address_connections: the same, for each client address.
        header_bytes: for a request's line and headers.
        header_seconds: for the same, from the connection's start or the request's first byte.
        body_bytes: for a request's body, both as received and decompressed.
        body_seconds: for the whole body, and for the client to read the answer.
        idle_seconds: between a response and the next request.
    """

    max_connections: int = 1024
    max_address_connections: int = 768
    header_bytes: int = 16 * 1024
    header_seconds: float = 10.0
    body_bytes: int = 64 * 2**20
    body_seconds: float = 60.0
    idle_seconds: float = 75.0
