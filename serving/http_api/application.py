"""Routing of HTTP requests that the transport has admitted."""

from collections.abc import Callable, Sequence
from typing import Protocol

from serving.http_api.admission import refuse_other_sites
from serving.http_api.exchange import HttpAnswer, HttpCall, HttpRequest, error_answer
from serving.http_api.routes import ROUTES, Route, unknown_path
from serving.http_api.shared_pages import SharedPages
from serving.security.access import Access
from serving.transport.events import Metadata
from serving.transport.http2_server import Http2Server

_PROBES = ("/live", "/ready")
_READ = ("GET", "HEAD")
# For processes whose models are not loaded yet, or are unloaded already.
_NOT_NOW = error_answer(503, "no model can be asked: the server is loading or draining")


# As `DataPlane.take`, of a server's predict calls.
TakeUsual = Callable[[int, int, Callable[[int], tuple[int, Metadata]]], Sequence[int]]


class Api(Protocol):
    """Handler of the protocol's paths."""

    def take(self, call: HttpCall, route: Route) -> None:
        """Answers a request, on this thread or later on another one."""
        ...

    def attach(self, server: Http2Server, respond: Callable[[int, HttpAnswer], None]) -> TakeUsual:
        """Sets the server of the requests, and what answers one by its number.

        Returns what takes calls among its events.
        """
        ...

    def run(self) -> None:
        """Runs calls that were taken among events, on this thread or on others."""
        ...


class Application:
    """Answers HTTP requests: the API answers the protocol's paths, the pages all others."""

    def __init__(
        self,
        page: Callable[[HttpRequest], HttpAnswer],
        probe: Callable[[str], HttpAnswer],
        api: Api | None,
        *,
        has_protocol: bool,
    ) -> None:
        """Starts the thread that runs `page`; threads that bring requests run `probe`.

        Args:
            api: None: there are no models in this process.
            has_protocol: the server ever answers the protocol's paths.
        """
        self._probe = probe
        self._api = api
        # By position in `transport_routes`.
        self._routes = ROUTES if has_protocol else ()
        self._has_protocol = has_protocol
        self._pages = SharedPages(page)

    def take(self, call: HttpCall, position: int) -> None:
        """Answers a request of the route at a position in `transport_routes`, errors included."""
        try:
            if position < len(self._routes):
                self._take_route(call, self._routes[position])
            else:
                self._take_other(call)
        except Exception as error:
            call.fail(error)

    def close(self) -> None:
        """Stops the page thread after the page in progress."""
        self._pages.close()

    def _take_route(self, call: HttpCall, route: Route) -> None:
        if route.method == "POST" and route.access is Access.ADMIN:
            refuse_other_sites(call.request)
        if self._api is None:
            call.reply(_NOT_NOW)
        else:
            self._api.take(call, route)

    def _take_other(self, call: HttpCall) -> None:
        path, method = call.request.path, call.request.method
        if self._has_protocol and (path == "/v2" or path.startswith("/v2/")):
            if self._api is not None:
                raise unknown_path(method, path)
            call.reply(_NOT_NOW)
        elif path in _PROBES and method in _READ:
            call.reply(self._probe(path))
        else:
            self._pages.take(call)
