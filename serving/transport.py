"""What carries the RPCs: a seam, so that codec and executors never see a connection.

Models may still be loading when a transport listens: its calls are then told so.
"""

from collections.abc import Callable
from typing import Protocol

from serving.config import ServerConfig
from serving.grpcio_transport import GrpcioTransport
from serving.inference import Inference
from serving.native_transport import NativeTransport, check_native
from serving.rpc_handlers import CallCount, HandlerTable
from sharded_infer.errors import InputError


class Transport(Protocol):
    """Carries RPCs between a socket and the handlers."""

    def listen(self, port: int) -> int:
        """Begins to answer, on a port or, given 0, a free one; returns the port."""
        ...

    def warm(self, run: Callable[[], None]) -> None:
        """Runs something once on each thread that answers predict calls."""
        ...

    def stop(self, seconds: float) -> None:
        """Accepts no more, and returns when all calls are answered, or time is up."""
        ...


def make_transport(
    config: ServerConfig,
    *,
    inference: Inference,
    handlers: HandlerTable,
    calls: CallCount,
) -> Transport:
    """Prepares a transport.

    Args:
        config: the server's settings.
        inference: answers predict calls.
        handlers: all RPCs.
        calls: counts the calls in progress.

    Raises:
        InputError: there is no such transport, or it lacks something that is configured.
    """
    check_transport(config)
    if config.transport == "native":
        return NativeTransport(config, inference, handlers, calls)
    return GrpcioTransport(config, inference, handlers, calls)


def check_transport(config: ServerConfig) -> None:
    """Refuses what a transport lacks, before anything is loaded.

    Raises:
        InputError: there is no such transport, or it lacks something that is configured.
    """
    if config.transport == "native":
        check_native(config)
    elif config.transport != "grpcio":
        raise InputError(f"no transport is called {config.transport!r}, expected grpcio or native")
