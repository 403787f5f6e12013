"""Table of the protocol's paths, which `openapi.json` describes for clients.

The compiled transport has the same table: it finds a request's route, and admits it by the route's
access and largest body. Paths of no route are pages, or unknown paths of the protocol.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from serving.abi.transport import AccessBit
from serving.grpc_api.handlers import MOST_CONTROL_BYTES
from serving.http_api.exchange import HttpError
from serving.security.access import Access, access_of
from serving.transport.limits import ACCESS_BITS, HttpRoute
from sharded_infer.errors import RequestError

INFER = ("ModelInfer", "ModelInferVersion")
PROBES = ("ServerLive", "ServerReady")
_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_PLACEHOLDER = re.compile(r"\{\w+\}")


@dataclass(frozen=True, slots=True)
class Route:
    """A method (GET or POST) and path with placeholders such as `{model}`, named after the RPC."""

    method: str
    path: str
    operation: str
    has_body: bool = False

    @property
    def access(self) -> Access:
        """Access that a request needs: that of its RPC."""
        operation = self.operation.removesuffix("Version")
        if operation == "AllStatistics":
            operation = "ModelStatistics"
        if operation == "ModelPrepare":
            return access_of("/sharded_infer.v1.Predictor/Prepare")
        return access_of(f"/inference.GRPCInferenceService/{operation}")

    def names(self, path: str) -> Mapping[str, str]:
        """Decoded values of the placeholders of a path that the transport has matched.

        Raises RequestError if the decoded path is not UTF-8.
        """
        if "{" not in self.path:
            return _NO_NAMES
        parts = zip(self.path[1:].split("/"), _segments(path), strict=True)
        return {part[1:-1]: segment for part, segment in parts if part.startswith("{")}

    def fits(self, segments: list[str]) -> bool:
        """True if the path has these decoded segments, whatever the method."""
        parts = self.path[1:].split("/")
        return len(parts) == len(segments) and all(
            part == segment or part.startswith("{")
            for part, segment in zip(parts, segments, strict=True)
        )


def _of_models(method: str, tail: str, operation: str, *, has_body: bool = False) -> list[Route]:
    """Routes for the default version, and for an explicit version."""
    model = "/v2/models/{model}"
    return [
        Route(method, f"{model}{tail}", operation, has_body),
        Route(method, f"{model}/versions/{{version}}{tail}", f"{operation}Version", has_body),
    ]


_SYSTEM = "/v2/systemsharedmemory"
_CUDA = "/v2/cudasharedmemory"
# The first matching route applies.
ROUTES: tuple[Route, ...] = (
    Route("GET", "/v2", "ServerMetadata"),
    Route("GET", "/v2/health/live", "ServerLive"),
    Route("GET", "/v2/health/ready", "ServerReady"),
    Route("GET", "/v2/models/stats", "AllStatistics"),
    *_of_models("GET", "", "ModelMetadata"),
    *_of_models("GET", "/ready", "ModelReady"),
    *_of_models("GET", "/config", "ModelConfig"),
    *_of_models("GET", "/stats", "ModelStatistics"),
    *_of_models("POST", "/infer", "ModelInfer", has_body=True),
    *_of_models("POST", "/prepare", "ModelPrepare", has_body=True),
    Route("GET", "/v2/models/{model}/trace/setting", "ModelTraceGet"),
    Route("POST", "/v2/models/{model}/trace/setting", "ModelTraceSet", has_body=True),
    Route("GET", "/v2/trace/setting", "TraceGet"),
    Route("POST", "/v2/trace/setting", "TraceSet", has_body=True),
    Route("GET", "/v2/logging", "LoggingGet"),
    Route("POST", "/v2/logging", "LoggingSet", has_body=True),
    Route("POST", "/v2/repository/index", "RepositoryIndex", has_body=True),
    Route("POST", "/v2/repository/models/{model}/load", "RepositoryModelLoad", has_body=True),
    Route("POST", "/v2/repository/models/{model}/unload", "RepositoryModelUnload", has_body=True),
    Route("GET", f"{_SYSTEM}/status", "SystemMemoryStatus"),
    Route("GET", f"{_SYSTEM}/region/{{region}}/status", "SystemMemoryRegionStatus"),
    Route("POST", f"{_SYSTEM}/region/{{region}}/register", "SystemMemoryRegister", has_body=True),
    Route("POST", f"{_SYSTEM}/region/{{region}}/unregister", "SystemMemoryUnregister"),
    Route("POST", f"{_SYSTEM}/unregister", "SystemMemoryUnregisterAll"),
    Route("GET", f"{_CUDA}/status", "CudaMemoryStatus"),
    Route("GET", f"{_CUDA}/region/{{region}}/status", "CudaMemoryRegionStatus"),
    Route("POST", f"{_CUDA}/region/{{region}}/register", "CudaMemoryRegister", has_body=True),
    Route("POST", f"{_CUDA}/region/{{region}}/unregister", "CudaMemoryUnregister"),
    Route("POST", f"{_CUDA}/unregister", "CudaMemoryUnregisterAll"),
)


# Paths beside those of the protocol; the last is all other pages.
_PAGES = (
    HttpRoute("*", "/live", AccessBit.OPEN, is_probe=True),
    HttpRoute("*", "/ready", AccessBit.OPEN, is_probe=True),
    HttpRoute("*", "/openapi.json", AccessBit.OPEN),
    HttpRoute("*", "**", AccessBit.METRICS),
)
# Every other path of the protocol is unknown, to everyone.
_UNKNOWN = (
    HttpRoute("*", "/v2", AccessBit.OPEN),
    HttpRoute("*", "/v2/**", AccessBit.OPEN),
)


def transport_routes(
    *, has_protocol: bool, admin_elsewhere: bool, max_body_bytes: int
) -> tuple[HttpRoute, ...]:
    """Routes of a server for the transport: those of `ROUTES` first, in their order, if any.

    Args:
        has_protocol: the server ever answers the protocol's paths.
        admin_elsewhere: what changes the server is answered only on the admin address.
        max_body_bytes: of a predict call; 0: no body is read, as there are no models.
    """
    if not has_protocol:
        return _PAGES

    def of_transport(route: Route) -> HttpRoute:
        access = ACCESS_BITS[route.access]
        if route.access is Access.ADMIN and admin_elsewhere:
            access = AccessBit.ELSEWHERE
        most = max_body_bytes if route.operation in INFER else MOST_CONTROL_BYTES
        return HttpRoute(
            route.method,
            _PLACEHOLDER.sub("{}", route.path),
            access,
            is_probe=route.operation in PROBES,
            max_body=min(most, max_body_bytes) if route.has_body else 0,
        )

    return (*map(of_transport, ROUTES), *_UNKNOWN, *_PAGES)


def unknown_path(method: str, path: str) -> HttpError:
    """Error for a path that the protocol does not have, or not with this method.

    Args:
        path: percent-encoded, as received.

    Raises:
        RequestError: the decoded path is not UTF-8.
    """
    segments = _segments(path)
    allowed = [route.method for route in ROUTES if route.fits(segments)]
    if not allowed:
        return HttpError(404, f"no path {path[:200]!r}; /openapi.json has those there are")
    if "GET" in allowed:
        allowed.append("HEAD")
    expected = ", ".join(dict.fromkeys(allowed))
    return HttpError(405, f"{method[:40]}: expected {expected}", (("Allow", expected),))


def _segments(path: str) -> list[str]:
    try:
        return [unquote_to_bytes(part).decode() for part in path[1:].split("/")]
    except UnicodeDecodeError as error:
        raise RequestError(f"the path is no UTF-8: {error}") from error
