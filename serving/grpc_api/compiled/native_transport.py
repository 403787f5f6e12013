"""RPCs over the compiled transport (`serving/transport/`), whose HTTP/2 runs outside the GIL.

Calls arrive as events, many in one step. A few identical threads receive them, and a thread that
finds a run slot free runs a batch.
"""

import logging
import math
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from serving.abi.transport import MethodKind
from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.compressed_messages import plain_message
from serving.grpc_api.compiled.event_order import EventOrder
from serving.grpc_api.compiled.native_predicts import NativePredicts
from serving.grpc_api.compiled.rpcs import NativeRpcs
from serving.grpc_api.compiled.settings import limits_of, method_of
from serving.grpc_api.handlers import PREDICT_METHODS, HandlerTable
from serving.host.listeners import listen_on
from serving.host.unix_socket import UnixSocket
from serving.inference.data_plane import DataPlane
from serving.scheduler.batch_threads import EXPIRY_SECONDS, Expiry
from serving.security.tls import WatchedFiles, tls_files
from serving.status import DRAINING, Status, status_of
from serving.transport.events import Event, EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.library import transport_refusal
from serving.transport.reports import TransportReports
from sharded_infer.errors import InputError, InternalError

_log = logging.getLogger("sharded_infer")
_POLL_MS = 1000
_COLD_POLL_MS = 20
_LOOK_SECONDS = 1.0
# Calls that a thread takes at most before it runs a batch.
_MOST_TAKEN = 1024
# Number of calls whose reading takes long enough for more to arrive.
_MANY = 32
_WARM_UP_SECONDS = 60.0


class NativeTransport:
    """A transport of compiled code, on one address."""

    def __init__(
        self,
        config: ServerConfig,
        data_plane: DataPlane,
        handlers: HandlerTable,
        *,
        admin_host: str | None = None,
        unix_socket: UnixSocket | None = None,
    ) -> None:
        """Prepares the threads.

        Args:
            admin_host: the admin address, which answers no predict calls, or "" if that is
                `unix_socket` alone; None: the main one.
            unix_socket: a further address.
        """
        self._unix_socket = unix_socket
        self._config = config
        self._host = config.host if admin_host is None else admin_host
        self._admin = admin_host is not None
        self._data_plane = data_plane
        self._handlers = handlers
        self._paths = [f"/{s}/{m}" for s, methods in handlers.services.items() for m in methods]
        self._predict = [PREDICT_METHODS.get(path) for path in self._paths]
        self._predicts: NativePredicts | None = None
        self._reports = TransportReports(data_plane.count_unread, data_plane.count_dropped)
        self._expiry = Expiry(data_plane.dispatcher)
        self._server: Http2Server | None = None
        self._order: EventOrder | None = None
        self._is_stream: list[bool] = []
        self._rpcs: NativeRpcs | None = None
        self._fixed: dict[tuple[str, bytes], bytes] = {}
        self._next_look = 0.0
        self._certificates: WatchedFiles[ssl.SSLContext] | None = None
        self._warm_up: Callable[[], None] | None = None
        self._warmed = threading.Semaphore(0)
        self._listening = threading.Event()
        # While one runs a batch, the other receives calls.
        self._threads = [
            threading.Thread(target=self._serve, name=f"front-{n}", daemon=True) for n in (0, 1)
        ]

    def listen(self, port: int) -> int:
        """Starts answering on a port, where 0 picks a free one; returns the bound port.

        Raises:
            InputError: the port is not available, or the certificates cannot be used.
        """
        if self._warm_up is not None:
            # No client connects before every thread can answer.
            self._start_threads()
            self._await_warm()
        listeners, bound = [], port
        if self._host:
            listeners = listen_on(self._host, port, share_port=self._config.workers > 1)
            bound = listeners[0].getsockname()[1]
        if self._unix_socket is not None:
            listeners.append(self._unix_socket.take())
        server = self._make_server(listeners)
        self._rpcs = NativeRpcs(server, self._paths, self._handlers)
        most_calls = self._config.max_concurrent_requests
        self._predicts = NativePredicts(server, self._data_plane, most_calls)
        if not self._admin:
            self._data_plane.compiled.attach(server.answering, self._predict, most_calls)
        self._server = server
        self._order = EventOrder(partial(self._take_or_fail, server))
        for (path, message), answer in self._fixed.items():
            server.set_fixed_answer(self._paths.index(path), message, answer)
        self._listening.set()
        if self._warm_up is None:
            self._start_threads()
        return bound

    def set_fixed_answer(self, path: str, message: bytes, answer: bytes) -> None:
        """Sets an open method's answer to this very message, which handlers then do not get."""
        self._fixed[path, message] = answer
        if self._server is not None:
            self._server.set_fixed_answer(self._paths.index(path), message, answer)

    def warm(self, run: Callable[[], None]) -> None:
        """Calls `run` once on each thread that answers predict calls.

        Before `listen` there are no threads; `listen` then starts them and waits for the calls.
        """
        self._warm_up = run
        if self._server is not None:
            self._await_warm()

    def drain(self) -> None:
        """Accepts no more streams; ends each open one once its received requests are answered."""
        if self._server is not None:
            self._server.drain_streams()

    def stop(self, seconds: float) -> None:
        """Accepts no more calls; returns when all are answered or `seconds` have passed."""
        server, rpcs = self._server, self._rpcs
        if server is None or rpcs is None:
            return
        end = monotonic() + seconds
        self.drain()
        # Watches of health last until their clients end them.
        rpcs.end_streams(DRAINING)
        server.drain(seconds)
        for thread in self._threads:
            thread.join(max(0.1, end - monotonic()))
        server.stop()
        for thread in self._threads:
            thread.join(max(0.1, end - monotonic()))
        rpcs.stop()

    def _make_server(self, listeners: list[socket.socket]) -> Http2Server:
        config, handlers = self._config, self._handlers
        traces = self._data_plane.traces
        methods = [
            method_of(
                path,
                handlers.services[path.split("/")[1]][path.split("/")[2]],
                admin=self._admin,
                admin_elsewhere=handlers.admin_elsewhere,
                traces=traces,
            )
            for path in self._paths
        ]
        self._is_stream = [method.kind is MethodKind.STREAM for method in methods]
        tls = tls_files(config)
        if tls is not None:
            # OpenSSL's own messages name no file. Compiled code itself reads changed files.
            self._certificates = WatchedFiles(tls, tls.server_context)
        polls = 0 if self._admin else config.busy_poll_us
        return Http2Server(
            listeners,
            methods,
            limits_of(config),
            tls=tls,
            guard=handlers.guard,
            busy_poll_seconds=polls / 1e6,
        )

    def _start_threads(self) -> None:
        for thread in self._threads:
            thread.start()

    def _await_warm(self) -> None:
        for _ in self._threads:
            if not self._warmed.acquire(timeout=_WARM_UP_SECONDS):
                raise InternalError("a transport thread did not warm up")

    def _warm_thread(self) -> bool:
        """Warms the calling thread, once `warm` was called; True if it is warm."""
        if self._warm_up is None:
            return False
        self._warm_up()
        self._warmed.release()
        return True

    def _serve(self) -> None:
        dispatcher = self._data_plane.dispatcher
        warm = self._warm_thread()
        self._listening.wait()
        server = self._server
        if server is None or self._order is None:
            raise InternalError("the transport listens without a server")
        take = partial(self._data_plane.take, methods=self._predict)
        reader = EventReader(server.fetch, None if self._admin else take)
        order = self._order
        server.hold_replies()
        taken = 0
        while True:
            try:
                warm = warm or self._warm_thread()
                # While a thread reads many calls, more of them come.
                patience = 0 if taken else self._patience_ms() if warm else _COLD_POLL_MS
                events = reader.fetch(patience)
                if events is None:
                    return
                for event in events:
                    if self._is_stream[event.method]:
                        order.take(event)
                    else:
                        self._take_or_fail(server, event)
                self._look_around(server)
                # Calls that have already arrived are queued or refused before a batch runs.
                taken += reader.count
                if not reader.count or not _MANY <= taken < _MOST_TAKEN:
                    taken = 0
                    if events:
                        # Finished answers do not wait for a batch.
                        server.flush()
                    dispatcher.work(gathered=True)
                    server.set_backlog(self._data_plane.backlog())
            except Exception:
                # A bug of ours must not end the thread, and with it the server.
                _log.exception("internal error in a transport thread")

    def _look_around(self, server: Http2Server) -> None:
        self._reports.look(server.counters)
        if monotonic() < self._next_look:
            return
        self._next_look = monotonic() + _LOOK_SECONDS
        server.set_urgent_lead(self._data_plane.dispatcher.urgent_lead())
        if self._certificates is not None:
            self._certificates.look()

    def _patience_ms(self) -> int:
        pause = self._expiry.look()
        if pause is None:
            # Another thread may queue a call and then be busy for longer than the call may wait.
            waits = self._data_plane.dispatcher.waiting[0] > 0
            return round(EXPIRY_SECONDS * 1e3) if waits else _POLL_MS
        return math.ceil(pause * 1e3)

    def _take_or_fail(self, server: Http2Server, event: Event) -> None:
        try:
            self._take(server, event)
        except Exception as error:
            # A bug of ours must not leave this call or later ones without an answer.
            server.finish(event.call, status_of(error))

    def _take(self, server: Http2Server, event: Event) -> None:
        message = event.message
        if event.encoding != "identity":
            plain = plain_message(message, event.encoding, self._config.max_message_bytes)
            if isinstance(plain, Status):
                server.finish(event.call, plain)
                return
            message = plain
        method = self._predict[event.method]
        if method is None:
            if self._rpcs is not None:
                self._rpcs.take(event, message)
        elif self._predicts is not None:
            self._predicts.take(event, message, method)


def check_transport() -> None:
    """Raises InputError if the transport was not built or lacks a library, before any load."""
    refusal = transport_refusal()
    if refusal is not None:
        raise InputError(f"the transport cannot run: {refusal}")
