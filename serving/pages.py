"""The HTTP pages: `/metrics` for Prometheus, `/ready` and `/live` for probes, `/` for people."""

import socket
import socketserver
import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from serving.dashboard.answer import PageRequest
from serving.dashboard.dashboard import Dashboard
from serving.metrics import Metrics
from serving.server_state import ServerState
from sharded_infer.errors import InputError

# A client that says nothing for so long is dropped.
_SILENCE_SECONDS = 10.0
_BACKLOG = 64


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens for the pages; processes that are forked inherit it.

    Raises:
        InputError: the port cannot be had.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InputError(f"metrics port {host}:{port} cannot be had: {error.strerror}") from error
    listener.listen(_BACKLOG)
    return listener


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Probes and scrapes are not logged."""


class Pages(socketserver.ThreadingMixIn, WSGIServer):
    """Serves the pages on a listening socket, from threads of its own."""

    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        metrics: Metrics,
        state: ServerState,
        dashboard: Dashboard | None = None,
    ) -> None:
        """Begins to answer.

        Args:
            listener: from `listen`.
            metrics: the page's.
            state: whether the server is ready.
            dashboard: the live page; it lives as long as these pages do. None: there is none.
        """
        host, port = listener.getsockname()[:2]
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self._metrics_page = make_wsgi_app(metrics.registry)
        self._state = state
        self._dashboard = dashboard
        if dashboard is not None:
            dashboard.start()
        self.set_app(self._answer)
        self._thread = threading.Thread(target=self.serve_forever, name="pages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answers no more."""
        if self._dashboard is not None:
            self._dashboard.close()
        self.shutdown()
        self.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        live = None if self._dashboard is None else self._dashboard.answer(_request(environ))
        if live is not None:
            status = HTTPStatus(live.status)
            start_response(f"{status.value} {status.phrase}", list(live.headers))
            return [live.body]
        if path in {"/", "/metrics"}:
            pages: Iterable[bytes] = self._metrics_page(environ, start_response)
            return pages
        text = [("Content-Type", "text/plain; charset=utf-8")]
        if path == "/live":
            start_response("200 OK", text)
            return [b"live\n"]
        if path == "/ready":
            if self._state.ready:
                start_response("200 OK", text)
                return [b"ready\n"]
            start_response("503 Service Unavailable", text)
            return [b"draining\n" if self._state.draining else b"loading\n"]
        start_response("404 Not Found", text)
        return [b"pages: / /metrics /ready /live /api/live\n"]


def _request(environ: dict[str, Any]) -> PageRequest:
    return PageRequest(
        method=environ["REQUEST_METHOD"],
        path=environ.get("PATH_INFO", "/"),
        query=environ.get("QUERY_STRING", ""),
        accept=environ.get("HTTP_ACCEPT", ""),
        none_match=environ.get("HTTP_IF_NONE_MATCH", ""),
    )
