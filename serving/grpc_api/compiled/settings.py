"""Methods and limits of the native transport, from a server's settings."""

import math
import resource

import grpc

from serving.abi.transport import AccessBit, MethodKind
from serving.config.server_config import ServerConfig
from serving.grpc_api.handlers import PREDICT_METHODS, STREAM_METHOD
from serving.security.access import Access, access_of
from serving.transport.limits import ACCESS_BITS, Limits, Method

_LEAST_CONNECTIONS = 16
# Fewer connections are not divided among addresses.
_MANY = 64
_NO_LIMIT = 2**62
_CONNECTION_CALLS = 8192
_HEADER_BYTES = 16 * 1024
_HANDSHAKE_SECONDS = 10.0
_MESSAGE_SECONDS = 30.0
_STALLED_SECONDS = 60.0
# The default of gRPC.
_KEEPALIVE_SECONDS = 7200.0
_KEEPALIVE_TIMEOUT_SECONDS = 20.0
_LEAST_PING_SECONDS = 300.0


def method_of(
    path: str,
    handler: "grpc.RpcMethodHandler[object, object]",
    *,
    admin: bool,
    admin_elsewhere: bool,
    traces: bool,
) -> Method:
    """A method for the transport.

    Args:
        admin: on the admin address, which answers no predict calls.
        admin_elsewhere: RPCs that change the server are answered only there.
        traces: requests are traced, so that predict calls need metadata.
    """
    access = access_of(path)
    bit = ACCESS_BITS[access]
    if access is Access.ADMIN and admin_elsewhere and not admin:
        bit = AccessBit.ELSEWHERE
    if access is Access.PREDICT and admin:
        bit = AccessBit.NOT_HERE
    kind = MethodKind.UNARY if handler.unary_unary is not None else MethodKind.STREAM
    if path == STREAM_METHOD:
        kind = MethodKind.CALLS
    return Method(path, bit, traces or path not in PREDICT_METHODS, kind)


def limits_of(config: ServerConfig) -> Limits:
    """Limits of clients, by a server's settings and this process's descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The other half is for HTTP, files and pipes.
    connections = config.max_connections or max(_LEAST_CONNECTIONS, descriptors // 2)
    rate = config.rate_limit or 0.0
    return Limits(
        message_bytes=config.max_message_bytes,
        # A connection may take all that is left: one message more than the largest.
        held_bytes=config.max_queue_bytes + 2 * config.max_message_bytes,
        connections=connections,
        # Others can connect, whatever one address does.
        address_connections=connections * 3 // 4 if connections >= _MANY else _NO_LIMIT,
        connection_calls=config.max_connection_streams or _CONNECTION_CALLS,
        calls=config.max_concurrent_requests,
        header_bytes=(config.max_metadata_kib or 0) * 1024 or _HEADER_BYTES,
        stream_messages=config.max_stream_requests,
        streams=config.max_streams,
        handshake_seconds=_HANDSHAKE_SECONDS,
        message_seconds=_MESSAGE_SECONDS,
        idle_seconds=_KEEPALIVE_SECONDS,
        stalled_seconds=_STALLED_SECONDS,
        keepalive_seconds=config.keepalive_seconds or _KEEPALIVE_SECONDS,
        keepalive_timeout_seconds=config.keepalive_timeout_seconds or _KEEPALIVE_TIMEOUT_SECONDS,
        least_ping_seconds=_LEAST_PING_SECONDS
        if config.min_ping_seconds is None
        else config.min_ping_seconds,
        age_seconds=config.max_connection_age_seconds or math.inf,
        grace_seconds=config.drain_seconds,
        rate=rate,
        burst=config.rate_burst or max(1.0, rate),
    )
