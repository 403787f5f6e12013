"""RPCs over grpcio: a thread for each call in progress."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from time import time
from typing import Any

import grpc

from serving.arrivals import Arrivals
from serving.config import ServerConfig
from serving.inference import Inference
from serving.rpc_handlers import CallCount, HandlerTable, InferBehaviour
from serving.tls import TlsFiles, tls_files
from sharded_infer.errors import InputError

_log = logging.getLogger("sharded_infer")
_DRAIN_POLL_SECONDS = 0.02
_QUIET_POLLS = 25
_TOGETHER_SECONDS = 5.0
_WARM_UP_SECONDS = 60.0
_MOST_MS = 2**31 - 1
# Calls that come in one burst and are read at once; they are taken from there one by one.
_LEAST_PENDING = 128


class _RpcThreads(ThreadPoolExecutor):
    """grpcio's threads; says which calls are on their way to the queue."""

    def __init__(self, threads: int, arrivals: Arrivals) -> None:
        super().__init__(threads, thread_name_prefix="rpc")
        self._arrivals = arrivals

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        def run() -> Any:
            self._arrivals.begin()
            try:
                return fn(*args, **kwargs)
            finally:
                self._arrivals.settle_own()

        self._arrivals.announce()
        return super().submit(run)


class _InferThreads(ThreadPoolExecutor):
    """Where gRPC for Python submits predict calls: to the RPC threads, unless they are hopeless.

    Under overload most calls are. They are refused on the thread that polls for events, with their
    messages left unread: handing one to a thread and receiving it costs most of what answering a
    small request does.
    """

    def __init__(self, threads: _RpcThreads, inference: Inference, infer: InferBehaviour) -> None:
        super().__init__(1)  # never started
        self._rpc_threads = threads
        self._inference = inference
        self._infer = infer

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        refusal = None
        try:
            refusal = self._inference.refuse_hopeless(_time_remaining(args))
        except Exception:
            # A bug of ours must not end the thread that polls, and with it the server.
            _log.exception("internal error at the door")
        if refusal is None:
            return self._rpc_threads.submit(fn, *args, **kwargs)
        done: Future[Any] = Future()
        done.set_result(self._infer.refuse(refusal, lambda: fn(*args, **kwargs)))
        return done


def _time_remaining(arguments: tuple[Any, ...]) -> float | None:
    """Seconds to the deadline of the call that is submitted; None where it does not say.

    Only the call's event knows before a thread has it, and it is gRPC for Python's own. Where it
    has changed, calls are refused on the threads.
    """
    for argument in arguments:
        deadline = getattr(getattr(argument, "call_details", None), "deadline", None)
        if isinstance(deadline, float):
            return deadline - time()
    return None


class GrpcioTransport:
    """grpcio's server."""

    def __init__(
        self,
        config: ServerConfig,
        inference: Inference,
        handlers: HandlerTable,
        calls: CallCount,
    ) -> None:
        """Prepares the server.

        Args:
            config: the server's settings.
            inference: answers predict calls.
            handlers: all RPCs.
            calls: counts the calls in progress.
        """
        self._calls = calls
        self._host = config.host
        self._threads = config.threads
        self._tls = tls_files(config)
        self._pool = _RpcThreads(config.threads, inference.dispatcher.arrivals)
        self._server = grpc.server(
            self._pool,
            options=grpcio_options(config),
            maximum_concurrent_rpcs=config.max_concurrent_requests,
        )
        for behaviour in handlers.predicting:
            threads = _InferThreads(self._pool, inference, behaviour)
            behaviour.experimental_thread_pool = threads
        handlers.register_on(self._server)

    def listen(self, port: int) -> int:
        """Begins to answer, on a port or, given 0, a free one; returns the port.

        Raises:
            InputError: the port cannot be had, or the certificates cannot be used.
        """
        try:
            bound = add_port(self._server, f"{self._host}:{port}", self._tls)
        except RuntimeError as error:
            raise InputError(f"port {self._host}:{port} cannot be had: {error}") from error
        self._server.start()
        return bound

    def warm(self, run: Callable[[], None]) -> None:
        """Runs something once on each RPC thread.

        Libraries below keep state by thread, made at a thread's first call. The barrier keeps a
        fast thread from taking two turns; threads that a client's streams hold do not come, and
        are not waited for long.
        """
        together = threading.Barrier(self._threads)

        def turn() -> None:
            with suppress(threading.BrokenBarrierError):
                together.wait(_TOGETHER_SECONDS)
            run()

        turns = [self._pool.submit(turn) for _ in range(self._threads)]
        finished, late = wait(turns, timeout=_WARM_UP_SECONDS)
        for pending in late:
            pending.cancel()
        for done in finished:
            done.result()

    def stop(self, seconds: float) -> None:
        """Accepts no more, and returns when all calls are answered, or time is up."""
        stopped = self._server.stop(seconds)
        # Streams, such as a health watch, would last the whole time: they are cut off.
        # A call that waits for a thread gets one as soon as another ends, well within the polls.
        quiet = 0
        while not stopped.wait(_DRAIN_POLL_SECONDS):
            quiet = quiet + 1 if self._calls.in_progress == 0 else 0
            if quiet == _QUIET_POLLS:
                self._server.stop(None)
        # Time is up for a call that hangs.
        self._pool.shutdown(wait=False, cancel_futures=True)


def add_port(server: grpc.Server, address: str, tls: TlsFiles | None) -> int:
    """Has a server listen, with TLS or without; returns the port.

    Raises:
        RuntimeError: the port cannot be had.
        InputError: the certificates cannot be used.
    """
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, tls.grpc_credentials())


def grpcio_options(config: ServerConfig) -> list[tuple[str, int]]:
    """The channel arguments of a server."""
    pending = max(config.max_concurrent_requests, _LEAST_PENDING)
    options = [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # Two servers on one port would split the clients between them unseen: only the workers of
        # one server do, whose parent has made sure that the port was free.
        ("grpc.so_reuseport", int(config.workers > 1)),
        # What Python has not taken yet waits in the library, 1,000 and more by default: under
        # overload whatever is taken has waited too long by then, and nothing is answered in time.
        ("grpc.server.max_pending_requests", pending),
        ("grpc.server.max_pending_requests_hard_limit", 2 * pending),
    ]
    options += _connection_options(config)
    age = config.max_connection_age_seconds
    if age is not None:
        options += [
            ("grpc.max_connection_age_ms", min(round(age * 1e3), _MOST_MS)),
            ("grpc.max_connection_age_grace_ms", round(config.drain_seconds * 1e3)),
        ]
    return options


def _connection_options(config: ServerConfig) -> list[tuple[str, int]]:
    """What is asked of each connection; gRPC's own defaults hold for the rest."""
    said: list[tuple[str, float | None, float]] = [
        ("grpc.max_allowed_incoming_connections", config.max_connections, 1),
        ("grpc.max_concurrent_streams", config.max_connection_streams, 1),
        ("grpc.max_metadata_size", config.max_metadata_kib, 2**10),
        # The first limit refuses some calls above it, this one all.
        ("grpc.absolute_max_metadata_size", config.max_metadata_kib, 2**10),
        ("grpc.keepalive_time_ms", config.keepalive_seconds, 1e3),
        ("grpc.keepalive_timeout_ms", config.keepalive_timeout_seconds, 1e3),
        # The one that holds: gRPC 1.85 never starts the other's timer (writing.cc).
        ("grpc.http2.ping_timeout_ms", config.keepalive_timeout_seconds, 1e3),
        ("grpc.http2.min_ping_interval_without_data_ms", config.min_ping_seconds, 1e3),
    ]
    options = [(name, round(value * scale)) for name, value, scale in said if value is not None]
    if config.keepalive_seconds is not None:
        # A client that is silent has no calls, as a rule: by default gRPC pings none of those, and
        # the others only twice.
        options += [
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]
    return options
