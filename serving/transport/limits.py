"""Methods and HTTP routes of the compiled transport, and limits of clients."""

from dataclasses import dataclass

from serving.abi.transport import AccessBit, MethodKind
from serving.security.access import Access

ACCESS_BITS = {
    Access.OPEN: AccessBit.OPEN,
    Access.TOKEN: AccessBit.ANY_TOKEN,
    Access.PREDICT: AccessBit.PREDICT,
    Access.ADMIN: AccessBit.ADMIN,
    Access.METRICS: AccessBit.METRICS,
}


@dataclass(frozen=True, slots=True)
class Method:
    """A method (/service/Method) that the server answers.

    Attributes:
        with_headers: its events have the client's metadata.
    """

    path: str
    access: AccessBit
    with_headers: bool
    kind: MethodKind = MethodKind.UNARY


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A path of HTTP/1.1 that the server answers; the first that fits a request is its own.

    Attributes:
        verb: GET is HEAD too, and `*` any method.
        path: its segment `{}` stands for any one, and `**` in the end for whatever follows.
        is_probe: answered also on connections beyond the limits.
        max_body: bytes of the largest body, as received; with 0 a body is not read.
    """

    verb: str
    path: str
    access: AccessBit
    is_probe: bool = False
    max_body: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of clients; infinity and 2**62 stand for no limit. Times are in seconds.

    Attributes:
        held_bytes: of all requests that are being read.
        calls: passed on and not answered.
        stream_messages: of a stream, passed on and not answered; further ones are not read.
        streams: of calls.
        handshake_seconds: for TLS and the first frame; in HTTP/1.1 for a request's head.
        message_seconds: for a message to arrive; in HTTP/2 large ones have longer.
        idle_seconds: of a connection without calls.
        stalled_seconds: in which a client receives nothing of what it is sent.
        least_ping_seconds: between a client's pings without calls.
        rate: calls a second of a client; 0: no limit.
    """

    message_bytes: int
    held_bytes: int
    connections: int
    address_connections: int
    connection_calls: int
    calls: int
    header_bytes: int
    stream_messages: int
    streams: int
    handshake_seconds: float
    message_seconds: float
    idle_seconds: float
    stalled_seconds: float
    keepalive_seconds: float
    keepalive_timeout_seconds: float
    least_ping_seconds: float
    age_seconds: float
    grace_seconds: float
    rate: float
    burst: float
