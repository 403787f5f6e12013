"""The transport of RPCs, which hides connections from codecs and executors.

Models may still be loading when a transport starts to listen; calls are then refused as such.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.native_transport import NativeTransport, check_native
from serving.grpc_api.grpcio_transport import GrpcioTransport
from serving.grpc_api.handlers import HandlerTable
from serving.host.unix_socket import UnixSocket
from serving.inference.data_plane import DataPlane
from serving.transport.library import transport_refusal
from sharded_infer.errors import InputError

_log = logging.getLogger("sharded_infer")


class Transport(Protocol):
    """Carries RPCs between a socket and the handlers."""

    def listen(self, port: int) -> int:
        """Starts answering on a port, where 0 picks a free one; returns the bound port."""
        ...

    def set_fixed_answer(self, path: str, message: bytes, answer: bytes) -> None:
        """What an open method answers to this very message, whatever the handlers do."""
        ...

    def warm(self, run: Callable[[], None]) -> None:
        """Calls `run` once on each thread that answers predict calls."""
        ...

    def stop(self, seconds: float) -> None:
        """Accepts no more calls; returns when all are answered or `seconds` have passed."""
        ...


def make_transport(
    config: ServerConfig,
    *,
    data_plane: DataPlane,
    handlers: HandlerTable,
    admin_host: str | None = None,
    unix_socket: UnixSocket | None = None,
) -> Transport:
    """Prepares the configured transport; `check_transport` must have accepted `config`.

    Args:
        admin_host: the admin address, which answers no predict calls, or "" if that is
            `unix_socket` alone; None: the main one.
        unix_socket: is answered too.
    """
    if transport_name(config) == "native":
        return NativeTransport(
            config, data_plane, handlers, admin_host=admin_host, unix_socket=unix_socket
        )
    return GrpcioTransport(config, data_plane, handlers, admin_host=admin_host)


def transport_name(config: ServerConfig) -> str:
    """The configured transport, or the best that can run here."""
    if config.transport is not None:
        return config.transport
    return "grpcio" if transport_refusal() else "native"


def check_transport(config: ServerConfig) -> None:
    """Refuses settings that the transport does not support, before anything is loaded.

    Raises:
        InputError: there is no such transport, or it does not support a setting.
    """
    if config.transport == "native":
        check_native()
    elif config.transport is None:
        refusal = transport_refusal()
        if refusal is not None:
            _log.warning("grpcio carries the calls, the slower transport: %s", refusal)
    elif config.transport != "grpcio":
        raise InputError(f"no transport is called {config.transport!r}, expected grpcio or native")
    if transport_name(config) == "grpcio" and (config.unix_socket or config.admin_socket):
        raise InputError("Unix sockets for gRPC: expected --transport native, got grpcio")
    if transport_name(config) == "grpcio" and config.busy_poll_us:
        raise InputError("busy_poll_us: expected --transport native, got grpcio")
