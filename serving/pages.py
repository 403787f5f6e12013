"""The HTTP port: the live page, metrics and probes for people, and the protocol for clients.

/v2...                 the protocol (`serving/rest`), in processes that have models
/openapi.json          its description
/metrics               for Prometheus
/ready, /live          for probes
/, /dashboard, /api    the live page
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import uvicorn
from prometheus_client import make_wsgi_app

from serving.config import ServerConfig
from serving.dashboard.answer import PageRequest
from serving.dashboard.dashboard import Dashboard
from serving.guard import Guard
from serving.metrics import Metrics
from serving.rest.application import Api, Application
from serving.rest.connection import HttpLimits, connection_class
from serving.rest.door import HttpDoor
from serving.rest.exchange import HttpAnswer, HttpRequest, json_answer
from serving.rest.openapi import openapi_document
from serving.server_state import ServerState
from serving.tls import TlsFiles
from sharded_infer.errors import InputError, InternalError

_BACKLOG = 64
_START_SECONDS = 10.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.01
_TEXT = "text/plain; charset=utf-8"
_READ = ("GET", "HEAD")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens for HTTP; processes that are forked inherit it.

    Raises:
        InputError: the port cannot be had.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets have it from this one. asyncio sets it on those alone whose protocol number
    # is TCP's, which `socket.socket` leaves at 0; answers then wait 40 ms for acknowledgements.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InputError(f"metrics port {host}:{port} cannot be had: {error.strerror}") from error
    listener.listen(_BACKLOG)
    return listener


def http_limits(config: ServerConfig) -> HttpLimits:
    """What a server's HTTP clients are held to.

    Args:
        config: the server's settings.
    """
    return HttpLimits(
        max_connections=config.http_max_connections,
        header_bytes=config.http_header_bytes,
        header_seconds=config.http_header_seconds,
        body_bytes=config.max_message_bytes,
        body_seconds=config.http_body_seconds,
        idle_seconds=config.http_idle_seconds,
    )


def http_door(config: ServerConfig, guard: Guard | None) -> HttpDoor:
    """What lets HTTP requests in.

    Args:
        config: the server's settings.
        guard: this process's.
    """
    return HttpDoor(guard, admin_elsewhere=config.admin_address is not None)


class Pages:
    """Answers HTTP on a listening socket, from threads of its own."""

    def __init__(
        self,
        listener: socket.socket,
        metrics: Metrics,
        state: ServerState,
        dashboard: Dashboard | None = None,
        *,
        api: Api | None = None,
        limits: HttpLimits | None = None,
        door: HttpDoor | None = None,
        tls: TlsFiles | None = None,
        missing: Callable[[], Iterable[str]] = tuple,
        is_live: Callable[[], bool] = lambda: True,
    ) -> None:
        """Begins to answer.

        Args:
            listener: from `listen`; it is closed when these pages are.
            metrics: the page's.
            state: whether the server is ready.
            dashboard: the live page; it lives as long as these pages do. None: there is none.
            api: answers the protocol's paths; None: this process has no models.
            limits: what clients are held to; None: as `HttpLimits` has it.
            door: lets requests in; None: all.
            tls: the server's certificate; None: HTTP without TLS.
            missing: names of the models that are to be served and are not.
            is_live: whether this process gets on; where there are several, the first one sees.

        Raises:
            InputError: the certificate cannot be used.
        """
        limits = limits or HttpLimits()
        self.server_port: int = listener.getsockname()[1]
        self._metrics_page = make_wsgi_app(metrics.registry)
        self._state = state
        self._missing = missing
        self._is_live = is_live
        self._dashboard = dashboard
        if dashboard is not None:
            dashboard.start()
        self._application = Application(self._answer, api, limits, door or HttpDoor(None))
        # What it has to say is said by the application; what clients send is not logged.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            self._application,
            loop="asyncio",
            http=connection_class(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            h11_max_incomplete_event_size=limits.header_bytes,
            # It takes whole seconds, and compares nothing.
            timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
            timeout_graceful_shutdown=round(_STOP_SECONDS),
        )
        config.load()
        if tls is not None:
            config.ssl = tls.watched_context()
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="http", daemon=True
        )
        self._thread.start()
        self._await_start()

    def close(self) -> None:
        """Accepts no more, and returns when what was asked is answered, or time is up."""
        if self._dashboard is not None:
            self._dashboard.close()
        self._server.should_exit = True
        self._thread.join(2 * _STOP_SECONDS)
        self._application.close()

    def stop_accepting(self) -> None:
        """Leaves new connections to others that have the socket, and answers those there are."""
        done = threading.Event()

        def stop() -> None:
            for server in self._server.servers:
                server.close()
            done.set()

        self._server.servers[0].get_loop().call_soon_threadsafe(stop)
        done.wait(_STOP_SECONDS)

    def _await_start(self) -> None:
        waited = 0.0
        pause = threading.Event()
        while not self._server.started:
            if not self._thread.is_alive() or waited > _START_SECONDS:
                raise InternalError("the HTTP server did not start")
            pause.wait(_POLL_SECONDS)
            waited += _POLL_SECONDS

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        path = request.path
        live = None if self._dashboard is None else self._dashboard.answer(_page_request(request))
        if live is not None:
            return HttpAnswer(live.status, live.body, "", live.headers)
        known = {"/", "/metrics", "/live", "/ready", "/openapi.json"}
        if path in known and request.method not in _READ:
            return HttpAnswer(405, b"expected GET or HEAD\n", _TEXT, (("Allow", "GET, HEAD"),))
        if path in {"/", "/metrics"}:
            return self._metrics(request)
        if path == "/openapi.json":
            return json_answer(openapi_document())
        if path == "/live":
            if self._is_live():
                return HttpAnswer(200, b"live\n", _TEXT)
            return HttpAnswer(503, b"a batch hangs\n", _TEXT)
        if path == "/ready":
            return self._readiness()
        words = b"pages: / /metrics /ready /live /api/live /v2 /openapi.json\n"
        return HttpAnswer(404, words, _TEXT)

    def _readiness(self) -> HttpAnswer:
        if not self._state.ready:
            return HttpAnswer(503, f"{self._state.absence}\n".encode(), _TEXT)
        words = "ready\n"
        # Why not, with paths, is for those who may ask: probes have no tokens.
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
