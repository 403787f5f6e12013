"""The protocol over HTTP in one process: predictions, operations and descriptions."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from serving.grpc_api.handlers import MOST_CONTROL_BYTES
from serving.http_api.compression import inflate
from serving.http_api.connections.connection_context import WhenLost
from serving.http_api.exchange import HttpAnswer, HttpRequest
from serving.http_api.operations.model_api import ModelApi
from serving.http_api.predictions import Predictions
from serving.http_api.routes import Route, find_route

_INFER = ("ModelInfer", "ModelInferVersion")
_PROBES = ("ServerLive", "ServerReady")
# At most six loads and unloads wait (`serving/control/model_control.py`), so two threads stay free.
_THREADS = 8


class RestApi:
    """Answers the protocol's paths."""

    def __init__(
        self, operations: ModelApi, predictions: Predictions, *, max_body_bytes: int
    ) -> None:
        self._operations = operations
        self._predictions = predictions
        self._most_bytes = max_body_bytes
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="http-call")

    def refuse(self, method: str, path: str) -> HttpAnswer | None:
        """Refusal of a request before its body is read, or None.

        Raises HttpError or RequestError if there is no such path.
        """
        route, _ = find_route(method, path)
        return self._predictions.refuse() if route.operation in _INFER else None

    def body_bytes(self, method: str, path: str) -> int:
        """Largest body of a request, as received; 0 if it takes none.

        Raises HttpError or RequestError if there is no such path.
        """
        route, _ = find_route(method, path)
        if not route.has_body:
            return 0
        return self._most_bytes if route.operation in _INFER else MOST_CONTROL_BYTES

    async def answer(self, request: HttpRequest, when_lost: WhenLost) -> HttpAnswer:
        """Answers a request that `refuse` admits.

        Raises:
            HttpError, RequestError, StatusError: the request is refused.
        """
        route, names = find_route(request.method, request.path)
        if route.operation in _INFER:
            return await self._predictions.answer(names, request, when_lost)
        if route.operation in _PROBES:
            # Handled immediately, even if all threads are busy.
            return self._operations.answer(route.operation, names, request, lambda: True)
        return await self._operate(route, names, request, when_lost)

    def drain(self) -> None:
        """Refuses further predict calls."""
        self._predictions.drain()

    def stop(self, seconds: float) -> None:
        """Returns when all predict calls are answered or `seconds` have passed."""
        self._predictions.wait(seconds)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _operate(
        self,
        route: Route,
        names: Mapping[str, str],
        request: HttpRequest,
        when_lost: WhenLost,
    ) -> HttpAnswer:
        left = threading.Event()
        when_lost(left.set)

        def run() -> HttpAnswer:
            encoding = request.headers.get("content-encoding", "")
            plain = HttpRequest(
                request.method,
                request.path,
                request.query,
                request.headers,
                inflate(request.body, encoding, MOST_CONTROL_BYTES),
            )
            return self._operations.answer(route.operation, names, plain, lambda: not left.is_set())

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)
