"""HTTP servers in this process, for tests."""

from collections.abc import Callable, Sequence
from contextlib import closing
from socket import socket

from serving.config.server_config import ServerConfig
from serving.control.server_state import ServerState
from serving.http_api.application import Api, TakeUsual
from serving.http_api.exchange import HttpAnswer, HttpCall
from serving.http_api.http_server import HttpServer, http_limits, listen
from serving.http_api.routes import Route
from serving.metrics.server_metrics import ServerMetrics
from serving.security.tls import TlsFiles
from serving.transport.http2_server import Http2Server
from serving.transport.limits import Limits

LIMITS = http_limits(ServerConfig(""))


class Answering:
    """An API that answers bodies."""

    def take(self, call: HttpCall, route: Route) -> None:
        call.reply(HttpAnswer(200, call.request.body))

    def attach(self, server: Http2Server, respond: Callable[[int, HttpAnswer], None]) -> TakeUsual:
        return lambda events, count, event_of: range(count)

    def run(self) -> None:
        pass

    def lose(self, number: int) -> None:
        pass


def serving_http(
    limits: Limits = LIMITS,
    api: Api | None = None,
    *,
    tls: TlsFiles | None = None,
    listeners: Sequence[socket] | None = None,
    metrics: ServerMetrics | None = None,
    state: ServerState | None = None,
) -> closing[HttpServer]:
    listeners = listeners or listen("127.0.0.1", 0)
    return closing(
        HttpServer(
            listeners,
            metrics or ServerMetrics(),
            state or ServerState(1),
            limits=limits,
            api=api,
            tls=tls,
        )
    )
