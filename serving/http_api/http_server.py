"""The HTTP port: the protocol for clients, and the live page, metrics and probes for operators.

/v2...                 the protocol (`serving/http_api`), in processes that have models
/openapi.json          the protocol's OpenAPI description
/metrics               for Prometheus
/ready, /live          for probes
/, /dashboard, /api    the live page

A shard host has the metrics and the probes alone.
"""

import logging
import math
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import make_wsgi_app

from serving.abi.transport import EventKind
from serving.config.server_config import ServerConfig
from serving.control.server_state import ServerState
from serving.dashboard.answer import PageRequest
from serving.dashboard.dashboard import Dashboard
from serving.host.descriptors import most_descriptors
from serving.host.listeners import listen_on
from serving.http_api.application import Api, Application
from serving.http_api.exchange import HttpAnswer, HttpCall, HttpRequest
from serving.http_api.routes import transport_routes
from serving.metrics.families.server_families import HTTP_DROPPED
from serving.metrics.server_metrics import ServerMetrics
from serving.security.guard import Guard
from serving.security.tls import TlsFiles, WatchedFiles
from serving.transport.events import Event, EventReader, http_headers
from serving.transport.http2_server import Http2Server
from serving.transport.limits import Limits
from serving.transport.reports import HTTP_COUNTERS, TransportReports
from sharded_infer.errors import InputError

_TEXT = "text/plain; charset=utf-8"
_READ = ("GET", "HEAD")
# gRPC may have twice as many connections, and files of models are open.
_SHARE_OF_DESCRIPTORS = 4
# While one thread reads a request, the other answers probes.
_THREADS = 2
_POLL_MS = 1000
_LOOK_SECONDS = 1.0
# For requests in progress when the server closes.
_STOP_SECONDS = 5.0
_NO_LIMIT = 2**62
# Bodies of the largest size in memory at once; there may be more smaller ones.
_LARGEST_AT_ONCE = 6
_LEAST_HELD_BYTES = 384 * 2**20
_BODILESS = (204, 304)
_log = logging.getLogger("sharded_infer")
_DESCRIPTION = (Path(__file__).parent / "openapi.json").read_bytes()


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen for HTTP, inherited by forks. Raises InputError if the port is taken."""
    try:
        return listen_on(host, port)
    except InputError as error:
        raise InputError(f"HTTP {error}") from error


def http_limits(config: ServerConfig) -> Limits:
    """Configured limits of HTTP clients, which leave descriptors for all else."""
    most = most_descriptors() // _SHARE_OF_DESCRIPTORS
    if most < config.http_max_connections:
        _log.warning(
            "HTTP has %d connections instead of %d: this process may have only %d descriptors",
            most,
            config.http_max_connections,
            most_descriptors(),
        )
    rate = config.rate_limit or 0.0
    return Limits(
        message_bytes=config.max_message_bytes,
        held_bytes=max(_LEAST_HELD_BYTES, _LARGEST_AT_ONCE * config.max_message_bytes),
        connections=min(most, config.http_max_connections),
        address_connections=config.http_max_address_connections,
        connection_calls=_NO_LIMIT,
        calls=config.max_concurrent_requests,
        header_bytes=config.http_header_bytes,
        stream_messages=_NO_LIMIT,
        streams=0,
        handshake_seconds=config.http_header_seconds,
        message_seconds=config.http_body_seconds,
        idle_seconds=config.http_idle_seconds,
        stalled_seconds=config.http_body_seconds,
        keepalive_seconds=math.inf,
        keepalive_timeout_seconds=math.inf,
        least_ping_seconds=0.0,
        age_seconds=math.inf,
        grace_seconds=_STOP_SECONDS,
        rate=rate,
        burst=config.rate_burst or max(1.0, rate),
    )


class HttpServer:
    """Answers HTTP on listening sockets, on its own threads."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        metrics: ServerMetrics,
        state: ServerState,
        dashboard: Dashboard | None = None,
        *,
        limits: Limits,
        api: Api | None = None,
        guard: Guard | None = None,
        admin_elsewhere: bool = False,
        tls: TlsFiles | None = None,
        missing: Callable[[], Iterable[str]] = tuple,
        is_live: Callable[[], bool] = lambda: True,
        has_protocol: bool = True,
    ) -> None:
        """Starts answering; `listeners` and `dashboard` close with this server.

        Args:
            api: answers the protocol's paths; None if this process has no models.
            guard: None admits every request.
            admin_elsewhere: what changes the server is answered only on the admin address.
            missing: names of models that should be served but are not.
            is_live: True if this process makes progress. With several processes, the first one
                detects processes that hang.
            has_protocol: this server ever answers the protocol's paths.

        Raises:
            InputError: the certificate cannot be used.
        """
        self.server_port: int = listeners[0].getsockname()[1]
        self._metrics_page = make_wsgi_app(metrics.registry)
        self._state = state
        self._missing = missing
        self._is_live = is_live
        self._dashboard = dashboard
        self._has_protocol = has_protocol
        # OpenSSL's own messages name no file. Compiled code itself reads changed files.
        self._certificates = None if tls is None else WatchedFiles(tls, tls.server_context)
        self._server = Http2Server(
            (),
            (),
            limits,
            tls=tls,
            guard=guard,
            http_listeners=listeners,
            routes=transport_routes(
                has_protocol=has_protocol,
                admin_elsewhere=admin_elsewhere,
                max_body_bytes=0 if api is None else limits.message_bytes,
            ),
            # A process without models closes the connection, so that another process gets the next
            # request.
            answers_once=api is None and has_protocol,
        )
        if dashboard is not None:
            dashboard.start()
        self._api = api
        self._open: dict[int, HttpCall] = {}
        self._take_usual = None if api is None else api.attach(self._server, self._respond)
        self._application = Application(self._answer, self._probe, api, has_protocol=has_protocol)
        self._reports = TransportReports(
            lambda code, count: metrics.unknown_failed(code.name, count),
            lambda reason, count: metrics.add(HTTP_DROPPED, count, reason),
            HTTP_COUNTERS,
            "HTTP",
        )
        self._next_look = 0.0
        self._threads = [
            threading.Thread(target=self._serve, name=f"http-{n}", daemon=True)
            for n in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops accepting; returns when all requests are answered or a time limit has passed."""
        if self._dashboard is not None:
            self._dashboard.close()
        self._server.drain(_STOP_SECONDS)
        end = monotonic() + 2 * _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.1, end - monotonic()))
        self._server.stop()
        self._application.close()

    def stop_accepting(self) -> None:
        """Leaves new connections to other processes with the sockets; keeps the open ones."""
        self._server.stop_accepting()

    def _serve(self) -> None:
        reader = EventReader(self._server.fetch, self._take_usual, read_headers=http_headers)
        self._server.hold_replies()
        while True:
            try:
                events = reader.fetch(_POLL_MS)
                if events is None:
                    return
                for event in events:
                    self._take(event)
                if self._api is not None and len(events) < reader.count:
                    if events:
                        # Finished answers do not wait for a batch.
                        self._server.flush()
                    self._api.run()
                self._reports.look(self._server.counters)
                if self._certificates is not None and monotonic() >= self._next_look:
                    self._next_look = monotonic() + _LOOK_SECONDS
                    self._certificates.look()
            except Exception:
                # A bug of ours must not end the thread, and with it the server.
                _log.exception("internal error in an HTTP thread")

    def _take(self, event: Event) -> None:
        if event.kind is EventKind.CALL:
            call = HttpCall(event.call, _request_of(event), partial(self._respond, event.call))
            self._open[event.call] = call
            self._application.take(call, event.method)
        else:
            left = self._open.pop(event.call, None)
            if left is not None:
                left.is_lost = True

    def _respond(self, number: int, answer: HttpAnswer | None) -> None:
        self._open.pop(number, None)
        if answer is not None:
            self._server.respond_http(number, _lines_of(answer), answer.body)

    def _probe(self, path: str) -> HttpAnswer:
        if path == "/ready":
            return self._readiness()
        if self._is_live():
            return HttpAnswer(200, b"live\n", _TEXT)
        return HttpAnswer(503, b"a batch hangs\n", _TEXT)

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        path = request.path
        live = None if self._dashboard is None else self._dashboard.answer(_page_request(request))
        if live is not None:
            return HttpAnswer(live.status, live.body, "", live.headers)
        known = {"/", "/metrics", "/live", "/ready"}
        if self._has_protocol:
            known.add("/openapi.json")
        if path in known and request.method not in _READ:
            return HttpAnswer(405, b"expected GET or HEAD\n", _TEXT, (("Allow", "GET, HEAD"),))
        if path in {"/", "/metrics"}:
            return self._metrics(request)
        if path in known:
            return HttpAnswer(200, _DESCRIPTION)
        return self._not_found()

    def _not_found(self) -> HttpAnswer:
        pages = "/ /metrics /ready /live"
        if self._has_protocol:
            pages += " /api/live /v2 /openapi.json"
        return HttpAnswer(404, f"pages: {pages}\n".encode(), _TEXT)

    def _readiness(self) -> HttpAnswer:
        if not self._state.ready:
            return HttpAnswer(503, f"{self._state.absence}\n".encode(), _TEXT)
        words = "ready\n"
        # Reasons contain paths, so only authorized clients get them; probes have no tokens.
        if names := ", ".join(self._missing()):
            words += f"not served: {names} (RepositoryIndex and the log say why)\n"
        return HttpAnswer(200, words.encode(), _TEXT)

    def _metrics(self, request: HttpRequest) -> HttpAnswer:
        told: list[Any] = []
        environ = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
        }
        body = b"".join(
            self._metrics_page(environ, lambda status, headers: told.extend((status, headers)))
        )
        return HttpAnswer(int(told[0].split()[0]), body, "", tuple(told[1]))


def _page_request(request: HttpRequest) -> PageRequest:
    return PageRequest(
        method=request.method,
        path=request.path,
        query=request.query,
        accept=request.headers.get("accept", ""),
        none_match=request.headers.get("if-none-match", ""),
    )


def _request_of(event: Event) -> HttpRequest:
    headers: dict[str, str] = {}
    for name, value in event.metadata:
        text = str(value)
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    path, _, query = headers.pop(":path").partition("?")
    return HttpRequest(headers.pop(":method"), path, query, headers, event.message, event.peer)


def _lines_of(answer: HttpAnswer) -> bytes:
    """Status and headers of an answer, each with its line break."""
    named = {name.lower() for name, _ in answer.headers}
    lines = [_status_line(answer.status)]
    lines += [f"{name}: {value}\r\n" for name, value in answer.headers]
    if answer.kind and "content-type" not in named:
        lines.append(f"content-type: {answer.kind}\r\n")
    if answer.status not in _BODILESS and "content-length" not in named:
        lines.append(f"content-length: {len(answer.body)}\r\n")
    return "".join(lines).encode("latin-1")


@lru_cache(64)
def _status_line(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"{status} {phrase}\r\n"
