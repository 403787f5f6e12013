"""The HTTP port: the protocol for clients, and the live page, metrics and probes for operators.

/v2...                 the protocol (`serving/http_api`), in processes that have models
/openapi.json          the protocol's OpenAPI description
/metrics               for Prometheus
/ready, /live          for probes
/, /dashboard, /api    the live page

A shard host has the metrics and the probes alone.
"""

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import make_wsgi_app

from serving.config.server_config import ServerConfig
from serving.control.server_state import ServerState
from serving.dashboard.answer import PageRequest
from serving.dashboard.dashboard import Dashboard
from serving.host.descriptors import most_descriptors
from serving.host.listeners import listen_on
from serving.http_api.admission import HttpAdmission
from serving.http_api.application import Api, Application
from serving.http_api.connections.drop_report import DropReport
from serving.http_api.connections.limits import HttpLimits
from serving.http_api.connections.listener import HttpListener
from serving.http_api.exchange import HttpAnswer, HttpRequest
from serving.metrics.server_metrics import ServerMetrics
from serving.security.guard import Guard
from serving.security.tls import TlsFiles
from sharded_infer.errors import InputError

_TEXT = "text/plain; charset=utf-8"
_READ = ("GET", "HEAD")
# gRPC may have twice as many connections, and files of models are open.
_SHARE_OF_DESCRIPTORS = 4
_log = logging.getLogger("sharded_infer")
_DESCRIPTION = (Path(__file__).parent / "openapi.json").read_bytes()


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen for HTTP, inherited by forks. Raises InputError if the port is taken."""
    try:
        return listen_on(host, port)
    except InputError as error:
        raise InputError(f"HTTP {error}") from error


def http_limits(config: ServerConfig) -> HttpLimits:
    """Configured limits of HTTP clients, which leave descriptors for all else."""
    most = most_descriptors() // _SHARE_OF_DESCRIPTORS
    if most < config.http_max_connections:
        _log.warning(
            "HTTP has %d connections instead of %d: this process may have only %d descriptors",
            most,
            config.http_max_connections,
            most_descriptors(),
        )
    return HttpLimits(
        max_connections=min(most, config.http_max_connections),
        max_address_connections=config.http_max_address_connections,
        header_bytes=config.http_header_bytes,
        header_seconds=config.http_header_seconds,
        body_bytes=config.max_message_bytes,
        body_seconds=config.http_body_seconds,
        idle_seconds=config.http_idle_seconds,
    )


def http_admission(config: ServerConfig, guard: Guard | None) -> HttpAdmission:
    """Configured admission of HTTP requests; None as `guard` admits every request."""
    return HttpAdmission(guard, admin_elsewhere=config.admin_address is not None)


class HttpServer:
    """Answers HTTP on listening sockets, on its own threads."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        metrics: ServerMetrics,
        state: ServerState,
        dashboard: Dashboard | None = None,
        *,
        api: Api | None = None,
        limits: HttpLimits | None = None,
        admission: HttpAdmission | None = None,
        tls: TlsFiles | None = None,
        missing: Callable[[], Iterable[str]] = tuple,
        is_live: Callable[[], bool] = lambda: True,
        has_protocol: bool = True,
    ) -> None:
        """Starts answering; `listeners` and `dashboard` close with this server.

        Args:
            api: answers the protocol's paths; None if this process has no models.
            limits: None for the defaults of `HttpLimits`.
            admission: None admits every request.
            missing: names of models that should be served but are not.
            is_live: True if this process makes progress. With several processes, the first one
                detects processes that hang.
            has_protocol: this server ever answers the protocol's paths.

        Raises:
            InputError: the certificate cannot be used.
        """
        limits = limits or HttpLimits()
        self.server_port: int = listeners[0].getsockname()[1]
        self._metrics_page = make_wsgi_app(metrics.registry)
        self._state = state
        self._missing = missing
        self._is_live = is_live
        self._dashboard = dashboard
        if dashboard is not None:
            dashboard.start()
        self._has_protocol = has_protocol
        admission = admission or HttpAdmission(None)
        if has_protocol:
            self._application = Application(self._answer, self._probe, api, admission)
        else:
            self._application = Application(
                self._answer, self._probe, None, admission, self._not_found()
            )
        self._listener = HttpListener(
            listeners,
            limits,
            self._application.answer,
            # A process without models closes the connection, so that another process gets the next
            # request.
            keeps_open=api is not None or not has_protocol,
            drop=DropReport(metrics),
            tls=None if tls is None else tls.watched_context(),
        )

    def close(self) -> None:
        """Stops accepting; returns when all requests are answered or a time limit has passed."""
        if self._dashboard is not None:
            self._dashboard.close()
        self._listener.close()
        self._application.close()

    def stop_accepting(self) -> None:
        """Leaves new connections to other processes with the sockets; keeps the open ones."""
        self._listener.stop_accepting()

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
