"""Table of the protocol's paths, which `openapi.json` describes for clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from serving.http_api.exchange import HttpError
from sharded_infer.errors import RequestError

# Most requests use few paths, and each path is looked up several times per request.
_PATHS_KEPT = 256
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Route:
    """A method (GET or POST) and path with placeholders such as `{model}`, named after the RPC."""

    method: str
    path: str
    operation: str
    has_body: bool = False

    def match(self, segments: list[str]) -> Mapping[str, str] | None:
        """Values of the placeholders; None if the path does not match."""
        parts = self.path[1:].split("/")
        if len(parts) != len(segments):
            return None
        names: dict[str, str] = {}
        for part, segment in zip(parts, segments, strict=True):
            if part.startswith("{"):
                names[part[1:-1]] = segment
            elif part != segment:
                return None
        return names or _NO_NAMES


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


@lru_cache(_PATHS_KEPT)
def find_route(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """Route of a request, and the decoded values of its placeholders by name.

    Args:
        method: HEAD uses the route of GET.
        path: percent-encoded, as received.

    Raises:
        HttpError: there is no such path, or it does not have this method.
        RequestError: the decoded path is not UTF-8.
    """
    try:
        segments = [unquote_to_bytes(part).decode() for part in path[1:].split("/")]
    except UnicodeDecodeError as error:
        raise RequestError(f"the path is no UTF-8: {error}") from error
    allowed: list[str] = []
    for route in ROUTES:
        names = route.match(segments)
        if names is None:
            continue
        if route.method == method or (route.method, method) == ("GET", "HEAD"):
            return route, names
        allowed.append(route.method)
    if not allowed:
        raise HttpError(404, f"no path {path[:200]!r}; /openapi.json has those there are")
    if "GET" in allowed:
        allowed.append("HEAD")
    expected = ", ".join(dict.fromkeys(allowed))
    raise HttpError(405, f"{method[:40]}: expected {expected}", (("Allow", expected),))
