"""The protocol over HTTP in one process: its paths to predictions, operations and descriptions."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from serving.rest.compression import inflate
from serving.rest.exchange import HttpAnswer, HttpRequest
from serving.rest.model_api import ModelApi
from serving.rest.predictions import Predictions
from serving.rest.routes import Route, find_route
from serving.rpc_handlers import MOST_CONTROL_BYTES

_INFER = ("ModelInfer", "ModelInferVersion")
# Loads and unloads wait on these, six at most (`serving/model_control.py`): two are left.
_THREADS = 8


class RestApi:
    """Answers the protocol's paths."""

    def __init__(
        self, operations: ModelApi, predictions: Predictions, *, max_body_bytes: int
    ) -> None:
        """Keeps what answers.

        Args:
            operations: all but predict calls.
            predictions: the predict calls.
            max_body_bytes: of a body that was compressed.
        """
        self._operations = operations
        self._predictions = predictions
        self._most_bytes = max_body_bytes
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="http-call")

    def refuse(self, method: str, path: str) -> HttpAnswer | None:
        """Refuses a request before its body is read; None: it may come.

        Raises:
            HttpError, RequestError: there is no such path.
        """
        route, _ = find_route(method, path)
        return self._predictions.refuse() if route.operation in _INFER else None

    def body_bytes(self, method: str, path: str) -> int:
        """The bytes that a request's body may have; 0: it takes none.

        Raises:
            HttpError, RequestError: there is no such path.
        """
        route, _ = find_route(method, path)
        if not route.body:
            return 0
        return self._most_bytes if route.operation in _INFER else MOST_CONTROL_BYTES

    async def answer(self, request: HttpRequest, gone: Callable[[], Awaitable[None]]) -> HttpAnswer:
        """Answers a request.

        Args:
            request: one that `refuse` lets come.
            gone: returns when the client is not there any more.

        Raises:
            HttpError, RequestError, RpcStatusError: it is refused.
        """
        route, names = find_route(request.method, request.path)
        if route.operation in _INFER:
            return await self._predictions.answer(names, request, gone)
        return await self._operate(route, names, request, gone)

    def drain(self) -> None:
        """Takes no more predict calls."""
        self._predictions.drain()

    def wait(self, seconds: float) -> None:
        """Returns when all predict calls are answered, or time is up."""
        self._predictions.wait(seconds)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _operate(
        self,
        route: Route,
        names: Mapping[str, str],
        request: HttpRequest,
        gone: Callable[[], Awaitable[None]],
    ) -> HttpAnswer:
        left = threading.Event()

        async def watch() -> None:
            await gone()
            left.set()

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

        watching = asyncio.ensure_future(watch())
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, run)
        finally:
            watching.cancel()
