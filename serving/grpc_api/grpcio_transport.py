"""RPCs over grpcio, with one thread for each call in progress."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from time import time
from typing import Any

import grpc

from serving.config.server_config import ServerConfig
from serving.grpc_api.credentials import server_credentials
from serving.grpc_api.handlers import HandlerTable, InferBehaviour
from serving.inference.data_plane import DataPlane
from serving.scheduler.arrivals import Arrivals
from serving.security.tls import TlsFiles, tls_files
from sharded_infer.errors import InputError

_log = logging.getLogger("sharded_infer")
_DRAIN_POLL_SECONDS = 0.02
_QUIET_POLLS = 25
_TOGETHER_SECONDS = 5.0
_WARM_UP_SECONDS = 60.0
_ADMIN_THREADS = 4
# More would wait for threads, and be too late under overload.
_MOST_CALLS = 128
_MOST_MS = 2**31 - 1
# A burst of calls is read at once and may wait inside the library; Python takes one at a time.
_LEAST_PENDING = 128


class _RpcThreads(ThreadPoolExecutor):
    """grpcio's threads, which also count the calls that have not reached the queue yet."""

    def __init__(self, threads: int, arrivals: Arrivals) -> None:
        super().__init__(threads, thread_name_prefix="rpc")
        self._arrivals = arrivals

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        def run() -> Any:
            self._arrivals.begin()
            try:
                return fn(*args, **kwargs)
            finally:
                self._arrivals.own_queued()

        self._arrivals.received()
        return super().submit(run)


class _InferThreads(ThreadPoolExecutor):
    """Passes predict calls to the RPC threads, unless they would miss their deadlines.

    gRPC for Python submits predict calls here. Under overload most would miss their deadlines. The
    thread that polls for events refuses those and leaves their messages unread. Handing a call to a
    thread and receiving its message costs most of what answering a small request costs.
    """

    def __init__(self, threads: _RpcThreads, data_plane: DataPlane, infer: InferBehaviour) -> None:
        super().__init__(1)  # never started
        self._rpc_threads = threads
        self._data_plane = data_plane
        self._infer = infer

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        refusal = None
        try:
            refusal = self._data_plane.refuse_unreachable(_time_remaining(args))
        except Exception:
            # A bug of ours must not end the polling thread, and with it the server.
            _log.exception("internal error on admission")
        if refusal is None:
            return self._rpc_threads.submit(fn, *args, **kwargs)
        done: Future[Any] = Future()
        done.set_result(self._infer.refuse(refusal, lambda: fn(*args, **kwargs)))
        return done


def _time_remaining(arguments: tuple[Any, ...]) -> float | None:
    """Seconds to the deadline of the submitted call; None if it is unknown.

    Before a thread has the call, only its event holds the deadline. The event is internal to gRPC
    for Python. If a release changes it, calls are refused on the RPC threads instead.
    """
    for argument in arguments:
        deadline = getattr(getattr(argument, "call_details", None), "deadline", None)
        if isinstance(deadline, float):
            return deadline - time()
    return None


class GrpcioTransport:
    """A transport that uses grpcio's server."""

    def __init__(
        self,
        config: ServerConfig,
        data_plane: DataPlane,
        handlers: HandlerTable,
        *,
        admin_host: str | None = None,
    ) -> None:
        admin = admin_host is not None
        self._calls = data_plane.calls
        self._host = config.host if admin_host is None else admin_host
        self._threads = _ADMIN_THREADS if admin else config.threads
        self._tls = tls_files(config)
        self._pool = _RpcThreads(self._threads, data_plane.dispatcher.arrivals)
        self._server = grpc.server(
            self._pool,
            options=grpcio_options(config),
            maximum_concurrent_rpcs=config.max_concurrent_requests or _MOST_CALLS,
        )
        if not admin:
            for behaviour in handlers.predicting:
                threads = _InferThreads(self._pool, data_plane, behaviour)
                behaviour.experimental_thread_pool = threads
        handlers.register_on(self._server, admin=admin)

    def listen(self, port: int) -> int:
        """Starts answering on a port, where 0 picks a free one; returns the bound port.

        Raises:
            InputError: the port is not available, or the certificates cannot be used.
        """
        try:
            bound = add_port(self._server, f"{self._host}:{port}", self._tls)
        except RuntimeError as error:
            raise InputError(f"port {self._host}:{port} cannot be had: {error}") from error
        self._server.start()
        return bound

    def set_fixed_answer(self, path: str, message: bytes, answer: bytes) -> None:
        """Does nothing: each call goes to its handler."""

    def warm(self, run: Callable[[], None]) -> None:
        """Calls `run` once on each RPC thread.

        Underlying libraries create per-thread state at a thread's first call. The barrier keeps a
        fast thread from running twice. Threads that a client's streams occupy do not reach it, so
        the wait is bounded.
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
        """Accepts no more calls; returns when all are answered or `seconds` have passed."""
        stopped = self._server.stop(seconds)
        # Streams such as a health watch would last the whole time, so they are cut off. A call that
        # waits for a thread gets one when another call ends, well within the quiet polls.
        quiet = 0
        while not stopped.wait(_DRAIN_POLL_SECONDS):
            quiet = quiet + 1 if self._calls.in_progress == 0 else 0
            if quiet == _QUIET_POLLS:
                self._server.stop(None)
        # A call that still hangs is abandoned.
        self._pool.shutdown(wait=False, cancel_futures=True)


def add_port(server: grpc.Server, address: str, tls: TlsFiles | None) -> int:
    """Makes a server listen, with or without TLS; returns the bound port.

    Raises:
        RuntimeError: the port is not available.
        InputError: the certificates cannot be used.
    """
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, server_credentials(tls))


def grpcio_options(config: ServerConfig) -> list[tuple[str, int]]:
    """The channel arguments of a gRPC server."""
    pending = max(config.max_concurrent_requests or _MOST_CALLS, _LEAST_PENDING)
    options = [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # Two servers that share a port would silently split its clients. Only the workers of one
        # server share a port, after their parent has checked that it is free.
        ("grpc.so_reuseport", int(config.workers > 1)),
        # By default 1,000 or more calls wait in the library until Python takes them. Under overload
        # each call would have waited too long by then, and none would be answered in time.
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
    """The configured limits of each connection; gRPC's defaults apply to the rest."""
    said: list[tuple[str, float | None, float]] = [
        ("grpc.max_allowed_incoming_connections", config.max_connections, 1),
        ("grpc.max_concurrent_streams", config.max_connection_streams, 1),
        ("grpc.max_metadata_size", config.max_metadata_kib, 2**10),
        # The first limit refuses some of the calls above it; this one refuses all.
        ("grpc.absolute_max_metadata_size", config.max_metadata_kib, 2**10),
        ("grpc.keepalive_time_ms", config.keepalive_seconds, 1e3),
        ("grpc.keepalive_timeout_ms", config.keepalive_timeout_seconds, 1e3),
        # This timeout is the effective one: gRPC 1.85 never starts the other's timer (writing.cc).
        ("grpc.http2.ping_timeout_ms", config.keepalive_timeout_seconds, 1e3),
        ("grpc.http2.min_ping_interval_without_data_ms", config.min_ping_seconds, 1e3),
    ]
    options = [(name, round(value * scale)) for name, value, scale in said if value is not None]
    if config.keepalive_seconds is not None:
        # A silent client usually has no calls. By default gRPC does not ping clients without calls,
        # and pings the others only twice.
        options += [
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]
    return options
