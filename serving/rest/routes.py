"""The protocol's paths: one table, which answers requests and writes the OpenAPI description."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from serving.rest.exchange import HttpError
from sharded_infer.errors import RequestError

# Most requests come by few paths, and each is looked up more than once.
_PATHS_KEPT = 256
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Route:
    """One path and method.

    Attributes:
        method: GET or POST.
        path: with `{name}` where a client's name stands.
        operation: what it does, in the words of the RPC.
        summary: one line for people.
        answer: the name of its answer's schema; empty: the answer has no body.
        body: the name of its body's schema; empty: it has none.
        refusals: the errors that it may answer with, beside those that every path has.
    """

    method: str
    path: str
    operation: str
    summary: str
    answer: str = ""
    body: str = ""
    refusals: tuple[int, ...] = ()

    def match(self, segments: list[str]) -> Mapping[str, str] | None:
        """The client's names in a path; None: it is another path."""
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


def _of_models(
    method: str, tail: str, operation: str, summary: str, **more: object
) -> tuple[Route, ...]:
    """A route for the default version, and one for a version that is named."""
    models = "/v2/models/{model}"
    return tuple(
        Route(method, f"{models}{part}{tail}", f"{operation}{suffix}", summary, **more)  # type: ignore[arg-type]
        for part, suffix in (("", ""), ("/versions/{version}", "Version"))
    )


# The first that matches answers.
ROUTES: tuple[Route, ...] = (
    Route("GET", "/v2", "ServerMetadata", "The server and what it can.", "ServerMetadata"),
    Route("GET", "/v2/health/live", "ServerLive", "Whether the process answers."),
    Route(
        "GET",
        "/v2/health/ready",
        "ServerReady",
        "Whether every model is loaded and the server is not draining.",
        refusals=(503,),
    ),
    Route(
        "GET",
        "/v2/models/stats",
        "AllStatistics",
        "Totals of all versions that are loaded.",
        "Statistics",
    ),
    *_of_models(
        "GET", "", "ModelMetadata", "A model's inputs and outputs.", answer="ModelMetadata",
        refusals=(404, 503),
    ),
    *_of_models(
        "GET", "/ready", "ModelReady", "Whether a version answers.", refusals=(404, 503)
    ),
    *_of_models(
        "GET", "/config", "ModelConfig", "A model's configuration.", answer="ModelConfig",
        refusals=(404, 503),
    ),
    *_of_models(
        "GET", "/stats", "ModelStatistics", "A version's totals.", answer="Statistics",
        refusals=(404, 503),
    ),
    *_of_models(
        "POST", "/infer", "ModelInfer", "Scores.", answer="InferResponse", body="InferRequest",
        refusals=(404, 503, 504),
    ),
    Route(
        "GET",
        "/v2/models/{model}/trace/setting",
        "ModelTraceGet",
        "How a model's requests are traced.",
        "TraceSettings",
        refusals=(404, 503),
    ),
    Route(
        "POST",
        "/v2/models/{model}/trace/setting",
        "ModelTraceSet",
        "The same; other settings are refused.",
        "TraceSettings",
        "TraceSettings",
        (404, 501, 503),
    ),
    Route(
        "GET", "/v2/trace/setting", "TraceGet", "How requests are traced.", "TraceSettings"
    ),
    Route(
        "POST",
        "/v2/trace/setting",
        "TraceSet",
        "The same; other settings are refused.",
        "TraceSettings",
        "TraceSettings",
        (501,),
    ),
    Route("GET", "/v2/logging", "LoggingGet", "What is logged.", "LogSettings"),
    Route(
        "POST",
        "/v2/logging",
        "LoggingSet",
        "Changes what is logged.",
        "LogSettings",
        "LogSettings",
        (501,),
    ),
    Route(
        "POST",
        "/v2/repository/index",
        "RepositoryIndex",
        "All versions that are known, and why those that are not ready are not.",
        "RepositoryIndex",
        "RepositoryIndexRequest",
    ),
    Route(
        "POST",
        "/v2/repository/models/{model}/load",
        "RepositoryModelLoad",
        "Loads a model, or has the server look at its repository.",
        body="RepositoryRequest",
        refusals=(404, 503),
    ),
    Route(
        "POST",
        "/v2/repository/models/{model}/unload",
        "RepositoryModelUnload",
        "Lets a model go.",
        body="RepositoryRequest",
        refusals=(404, 503),
    ),
    Route(
        "GET",
        "/v2/systemsharedmemory/status",
        "SystemMemoryStatus",
        "The regions that are registered.",
        "SystemRegions",
    ),
    Route(
        "GET",
        "/v2/systemsharedmemory/region/{region}/status",
        "SystemMemoryRegionStatus",
        "One region.",
        "SystemRegions",
        refusals=(404, 501),
    ),
    Route(
        "POST",
        "/v2/systemsharedmemory/region/{region}/register",
        "SystemMemoryRegister",
        "Makes a region known.",
        body="SystemRegion",
        refusals=(404, 409, 501),
    ),
    Route(
        "POST",
        "/v2/systemsharedmemory/region/{region}/unregister",
        "SystemMemoryUnregister",
        "Forgets a region.",
    ),
    Route(
        "POST",
        "/v2/systemsharedmemory/unregister",
        "SystemMemoryUnregisterAll",
        "Forgets all regions.",
    ),
    Route(
        "GET",
        "/v2/cudasharedmemory/status",
        "CudaMemoryStatus",
        "Nothing is registered: this server runs on CPUs.",
        "CudaRegions",
    ),
    Route(
        "GET",
        "/v2/cudasharedmemory/region/{region}/status",
        "CudaMemoryRegionStatus",
        "Nothing is registered.",
        "CudaRegions",
        refusals=(404,),
    ),
    Route(
        "POST",
        "/v2/cudasharedmemory/region/{region}/register",
        "CudaMemoryRegister",
        "Refused: this server runs on CPUs.",
        body="CudaRegion",
        refusals=(501,),
    ),
    Route(
        "POST",
        "/v2/cudasharedmemory/region/{region}/unregister",
        "CudaMemoryUnregister",
        "Does nothing: clients begin with that.",
    ),
    Route(
        "POST",
        "/v2/cudasharedmemory/unregister",
        "CudaMemoryUnregisterAll",
        "Does nothing: clients begin with that.",
    ),
)  # fmt: skip


@lru_cache(_PATHS_KEPT)
def find_route(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """What a request asks for.

    Args:
        method: such as GET; HEAD is answered as GET.
        path: percent-encoded, as it came.

    Returns:
        The route, and the client's names by those of the route's path.

    Raises:
        HttpError: there is no such path, or not with this method.
        RequestError: a name in the path is no UTF-8.
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
