"""RPCs over pygrpc-native: HTTP/2 in Rust outside the GIL, for many small requests.

Predict calls come as events, many in one step; a few symmetrical threads take them, and whoever
finds a run slot free runs what is there. All other RPCs go through a grpcio server behind it, on a
Unix socket.
"""

import logging
import math
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import grpc

from kernels.wording import counted
from serving.access import Access
from serving.admission import admission
from serving.config import ServerConfig
from serving.grpcio_transport import grpcio_options
from serving.inference import Inference, Refusal
from serving.job import Job
from serving.predict_method import PredictMethod
from serving.rpc_handlers import PREDICT_METHODS, CallCount, HandlerTable
from serving.status import status_of
from sharded_infer.errors import InputError, InternalError

try:
    import pygrpc_native
except ImportError:  # the extra `native` is not installed
    pygrpc_native = None  # type: ignore[assignment]

_log = logging.getLogger("sharded_infer")
_FALLBACK_THREADS = 8
# Settings of TLS and of connections, which the front has none of.
_LACKING = (
    "tls_certificate", "tls_key", "tls_client_ca", "max_connections", "max_connection_streams",
    "max_metadata_kib", "keepalive_seconds", "keepalive_timeout_seconds", "min_ping_seconds",
)  # fmt: skip
_EVENTS = 64
_POLL_MS = 1000
_COLD_POLL_MS = 20
_WARM_UP_SECONDS = 60.0
_DRAIN_POLL_SECONDS = 0.01
_QUIET_POLLS = 25
# How often waiting requests are looked through for passed deadlines; cancelled ones leave at once.
_EXPIRY_SECONDS = 0.005
# By the number that the front gives a method.
_METHODS = tuple(PREDICT_METHODS.values())
# A call's metadata, its peer, and seconds to its deadline.
_CallDetails = tuple[tuple[tuple[str, str | bytes], ...], str, float | None]


class NativeTransport:
    """pygrpc-native's server, with grpcio behind it."""

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
            handlers: all RPCs; they are for the others.
            calls: counts the calls in progress.
        """
        self._inference = inference
        self._calls = calls
        self._largest = config.max_message_bytes
        self._most_jobs = config.max_concurrent_requests
        self._jobs: dict[int, Job] = {}
        self._draining = False
        self._closed = False
        self._next_expiry = 0.0
        self._config = config
        self._handlers = handlers
        self._front: Any = None
        self._fallback: grpc.Server | None = None
        self._folder: Path | None = None
        self._warm_up: Callable[[], None] | None = None
        self._warmed = threading.Semaphore(0)
        self._listening = threading.Event()
        self._more = threading.Semaphore(0)
        inference.dispatcher.on_more = self._more.release
        # While one thread runs a batch, another takes what comes; the others run more batches.
        slots = inference.dispatcher.slots
        self._threads = [
            *(threading.Thread(target=self._serve, name=f"front-{n}", daemon=True) for n in (0, 1)),
            *(
                threading.Thread(target=self._help, name=f"run-{n}", daemon=True)
                for n in range(1, slots)
            ),
        ]

    def listen(self, port: int) -> int:
        """Begins to answer, on a port or, given 0, a free one; returns the port.

        Raises:
            InputError: the port cannot be had.
        """
        host = self._config.host
        if self._warm_up is not None:
            # Nobody is let in before every thread can answer.
            self._start_threads()
            self._await_warm()
        try:
            self._front = pygrpc_native.NativeGrpcFront(
                f"{host}:{port}",
                [(path, False) for path in PREDICT_METHODS],
                io_threads=1,
                call_details=True,
                reuse_port=self._config.workers > 1,
            )
        except OSError as error:
            raise InputError(f"port {host}:{port} cannot be had: {error}") from error
        self._folder = Path(tempfile.mkdtemp(prefix="sharded-infer-"))
        socket = self._folder / "fallback.sock"
        self._fallback = grpc.server(
            ThreadPoolExecutor(_FALLBACK_THREADS, thread_name_prefix="rpc"),
            options=grpcio_options(self._config),
        )
        self._handlers.register_on(self._fallback)
        self._fallback.add_insecure_port(f"unix:{socket}")
        self._fallback.start()
        self._front.set_fallback(str(socket))
        self._front.start()
        self._listening.set()
        if self._warm_up is None:
            self._start_threads()
        bound: int = self._front.bound_port
        return bound

    def warm(self, run: Callable[[], None]) -> None:
        """Runs something once on each thread that answers predict calls.

        Before `listen` there are no threads: it starts and awaits them then.
        """
        self._warm_up = run
        if self._front is not None:
            self._await_warm()

    def stop(self, seconds: float) -> None:
        """Accepts no more, and returns when all calls are answered, or time is up."""
        self._draining = True
        if self._front is None or self._fallback is None:
            return
        end = monotonic() + seconds
        # Closing cuts off answers that are still being sent, and nothing says when they are.
        quiet = 0
        while quiet < _QUIET_POLLS and monotonic() < end:
            quiet = 0 if self._calls.in_progress else quiet + 1
            sleep(_DRAIN_POLL_SECONDS)
        self._front.close()
        self._closed = True
        self._more.release(len(self._threads))
        for thread in self._threads:
            thread.join(max(0.1, end - monotonic()))
        self._fallback.stop(None).wait()
        shutil.rmtree(self._folder or "", ignore_errors=True)

    def _start_threads(self) -> None:
        for thread in self._threads:
            thread.start()

    def _await_warm(self) -> None:
        for _ in self._threads:
            if not self._warmed.acquire(timeout=_WARM_UP_SECONDS):
                raise InternalError("a transport thread did not warm up")

    def _serve(self) -> None:
        dispatcher = self._inference.dispatcher
        warm = False
        while True:
            try:
                if not warm and self._warm_up is not None:
                    self._warm_up()
                    warm = True
                    self._warmed.release()
                self._listening.wait()
                patience = self._patience_ms() if warm else _COLD_POLL_MS
                events = self._front.recv_batch_details(_EVENTS, patience)
                if events is None:
                    return
                for kind, call_id, method, payload, _, details in events:
                    if kind == pygrpc_native.EVENT_CANCEL:
                        self._cancel(call_id)
                    else:
                        self._take_or_fail(call_id, payload, details, _METHODS[method])
                self._expire()
                # What has come already is taken in, or refused, before anything runs.
                if len(events) < _EVENTS:
                    dispatcher.work()
            except Exception:
                # A bug of ours must not end the thread, and with it the server.
                _log.exception("internal error in a transport thread")

    def _help(self) -> None:
        """Runs batches for which a slot is free while the front's threads are busy."""
        warm = False
        while not self._closed:
            if not warm and self._warm_up is not None:
                self._warm_up()
                warm = True
                self._warmed.release()
            if self._more.acquire(timeout=1.0 if warm else _COLD_POLL_MS / 1e3):
                while self._inference.dispatcher.work():
                    pass

    def _patience_ms(self) -> int:
        due = self._inference.dispatcher.due()
        if due == math.inf:
            return round(_EXPIRY_SECONDS * 1e3) if self._jobs else _POLL_MS
        return max(0, min(_POLL_MS, math.ceil((due - monotonic()) * 1e3)))

    def _take_or_fail(
        self, call_id: int, message: bytes, details: _CallDetails, method: PredictMethod
    ) -> None:
        try:
            self._take(call_id, message, details, method)
        except Exception as error:
            # A bug of ours must leave neither this call without an answer, nor those after it.
            self._fail(call_id, Refusal(*status_of(error)))

    def _take(
        self, call_id: int, message: bytes, details: _CallDetails, method: PredictMethod
    ) -> None:
        metadata, _, time_remaining = details
        refusal = self._refusal(message, details)
        if refusal is not None:
            self._fail(call_id, refusal)
            return
        self._calls.add_predict(1)

        def reply(outcome: bytes | Refusal) -> None:
            self._jobs.pop(call_id, None)
            try:
                if isinstance(outcome, Refusal):
                    self._fail(call_id, outcome)
                else:
                    self._front.respond(call_id, outcome)
            finally:
                self._calls.add_predict(-1)

        submit = self._inference.submit
        job = submit(message, time_remaining, reply, method=method, metadata=metadata)
        if job is not None:
            self._jobs[call_id] = job
            if job.done:
                self._jobs.pop(call_id, None)

    def _refusal(self, message: bytes, details: _CallDetails) -> Refusal | None:
        """Why a call is not taken in; None: it is."""
        metadata, peer, time_remaining = details
        if self._draining:
            return Refusal(grpc.StatusCode.UNAVAILABLE, "the server is draining")
        guard = self._handlers.guard
        if guard is not None:
            refused = admission(guard, Access.PREDICT, metadata, peer)
            if refused is not None:
                return refused
        if len(message) > self._largest:
            words = (
                f"the message has {counted(len(message), 'byte')}, at most "
                f"{self._largest} are allowed"
            )
            return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        if len(self._jobs) >= self._most_jobs:
            # Not read at all: under overload this is most of what the server does.
            return self._inference.refuse_unread(self._most_jobs)
        return self._inference.refuse_hopeless(time_remaining)

    def _cancel(self, call_id: int) -> None:
        job = self._jobs.get(call_id)
        if job is not None:
            self._inference.dispatcher.cancel(job)

    def _fail(self, call_id: int, refusal: Refusal) -> None:
        code: int = refusal.code.value[0]
        # The front keeps gRPC's own names to itself; when to come again is in the words too.
        metadata = [pair for pair in refusal.metadata if not pair[0].startswith("grpc-")]
        self._front.fail(call_id, code, refusal.message, trailing_metadata=metadata)

    def _expire(self) -> None:
        now = monotonic()
        if self._jobs and now >= self._next_expiry:
            self._next_expiry = now + _EXPIRY_SECONDS
            self._inference.dispatcher.expire()


def check_native(config: ServerConfig) -> None:
    """Refuses what this transport lacks.

    Raises:
        InputError: it is not installed, or something is configured that it lacks.
    """
    if pygrpc_native is None:
        raise InputError(
            "the native transport is not installed: pip install 'sharded-infer[native]'"
        )
    for name in _LACKING:
        if getattr(config, name) is not None:
            raise InputError(
                f"{name}: the native transport lacks it; use the grpcio transport, or leave it out"
            )
    if config.max_connection_age_seconds is not None:
        raise InputError(
            "max_connection_age_seconds: the native transport cannot close connections by age; "
            "use the grpcio transport, or leave it out"
        )
