"""Predict calls over HTTP, with the same queue, limits and executor as those over gRPC."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import monotonic, sleep

from serving.config.server_config import ServerConfig
from serving.http_api.compression import inflate
from serving.http_api.connections.connection_context import WhenLost
from serving.http_api.exchange import HttpAnswer, HttpRequest, status_answer
from serving.http_api.infer_answer import infer_answer
from serving.http_api.json_codec import InferRequest, JsonCodec, read_request
from serving.inference.data_plane import Arrival, DataPlane
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.status import DRAINING, Status, status_of
from sharded_infer.errors import RequestError

_VERSIONED = PredictMethod.HTTP_INFER_VERSION
HEADER_LENGTH = "inference-header-content-length"
# The W3C Trace Context headers, which continue a client's trace.
_TRACE_HEADERS = ("traceparent", "tracestate")
_READING_THREADS = 2
_QUICK_BYTES = 16 * 1024
_DRAIN_POLL_SECONDS = 0.02
_MOST_LENGTH_DIGITS = 18
# Retry time of a call that was refused before its body was read.
_RETRY_SECONDS = 1.0
_CODEC = JsonCodec()


class Predictions:
    """Answers the predict calls of one process. The event loop calls `answer`.

    `wake` makes another thread run the submitted requests.
    """

    def __init__(
        self,
        config: ServerConfig,
        data_plane: DataPlane,
        wake: Callable[[], None],
    ) -> None:
        self._data_plane = data_plane
        self._calls = data_plane.calls
        self._wake = wake
        self._most_calls = config.max_concurrent_requests
        self._most_bytes = config.max_message_bytes
        self._draining = False
        self._lock = threading.Lock()
        self._open = 0
        # These threads read large requests, so that they do not block the event loop.
        self._threads = ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="http-read")

    def refuse(self) -> HttpAnswer | None:
        """Refusal of a call before its body is read, or None if it is admitted."""
        if self._draining:
            return status_answer(DRAINING)
        if max(self._open, self._calls.in_progress) >= self._most_calls:
            refusal = self._data_plane.refuse_unread(self._most_calls)
            return status_answer(replace(refusal, retry_seconds=_RETRY_SECONDS))
        return None

    async def answer(
        self,
        names: Mapping[str, str],
        request: HttpRequest,
        when_lost: WhenLost,
    ) -> HttpAnswer:
        """Answers a call; the path's `names` are the model, and its version if it has one."""
        # Other calls may have arrived while this body was read.
        refused = self.refuse()
        if refused is not None:
            return refused
        loop = asyncio.get_running_loop()
        prediction = _Prediction(loop, request.headers.get("accept-encoding", ""))
        self._count(1)
        try:
            if _is_quickly_read(request):
                number = self._begin(prediction, names, request)
            else:
                run = loop.run_in_executor
                number = await run(self._threads, self._begin, prediction, names, request)
            if number is not None:
                # A call can be cancelled only after its body is decoded.
                when_lost(partial(self._data_plane.cancel, number))
            # A running batch cannot be cancelled, so the call counts as in progress until it ends.
            return await prediction.answer
        finally:
            self._count(-1)

    def drain(self) -> None:
        """Refuses further calls."""
        self._draining = True

    def wait(self, seconds: float) -> None:
        """Returns when all calls are answered or `seconds` have passed."""
        end = monotonic() + seconds
        while self._open and monotonic() < end:
            sleep(_DRAIN_POLL_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change

    def _begin(
        self, prediction: "_Prediction", names: Mapping[str, str], request: HttpRequest
    ) -> int | None:
        try:
            read = self._read(names, request)
        except Exception as error:
            prediction.refuse(status_of(error))
            return None
        method = _VERSIONED if "version" in names else PredictMethod.HTTP_INFER
        arrival = Arrival(method, metadata=self._metadata(request))
        number = self._data_plane.submit(_CODEC, read, prediction.reply, arrival)
        if number is not None:
            self._wake()
        return number

    def _read(self, names: Mapping[str, str], request: HttpRequest) -> InferRequest:
        encoding = request.headers.get("content-encoding", "")
        body = inflate(request.body, encoding, self._most_bytes)
        length = _header_length(request.headers.get(HEADER_LENGTH))
        return read_request(names["model"], names.get("version", ""), body, length)

    def _metadata(self, request: HttpRequest) -> tuple[tuple[str, str], ...]:
        if not self._data_plane.traces:
            return ()
        headers = request.headers
        return tuple((name, headers[name]) for name in _TRACE_HEADERS if name in headers)


class _Prediction:
    """Passes the answer of one call from the computing thread to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, accept_encoding: str) -> None:
        self.answer: asyncio.Future[HttpAnswer] = loop.create_future()
        self._loop = loop
        self._accept_encoding = accept_encoding

    def reply(self, outcome: Answer | Status) -> None:
        """Passes an outcome to the event loop. Thread-safe."""
        self._loop.call_soon_threadsafe(self._finish, outcome)

    def refuse(self, status: Status) -> None:
        """Passes a refusal to the event loop. Thread-safe."""
        self._loop.call_soon_threadsafe(self._deliver, status_answer(status))

    def _finish(self, outcome: Answer | Status) -> None:
        self._deliver(_answer_of(outcome, self._accept_encoding))

    def _deliver(self, answer: HttpAnswer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


def _answer_of(outcome: Answer | Status, accept_encoding: str) -> HttpAnswer:
    if isinstance(outcome, Status):
        return status_answer(outcome)
    return infer_answer(outcome, accept_encoding)


def _is_quickly_read(request: HttpRequest) -> bool:
    """True if reading a request takes less time than a round trip to another thread."""
    is_plain = "content-encoding" not in request.headers
    return is_plain and len(request.body) <= _QUICK_BYTES and b"shared_memory" not in request.body


def _header_length(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_LENGTH_DIGITS:
        raise RequestError(
            f"Inference-Header-Content-Length: expected a number of bytes, got {text[:40]!r}"
        )
    return int(text)
