"""Predict calls over HTTP: through the same queue, limits and executor as those over gRPC."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

import grpc

from serving.config import ServerConfig
from serving.infer_stream import DRAINING
from serving.inference import Inference, Refusal
from serving.job import Job
from serving.predict_method import PredictMethod
from serving.rest.compression import inflate
from serving.rest.exchange import HttpAnswer, HttpRequest, refusal_answer
from serving.rest.infer_answer import infer_answer
from serving.rest.infer_request import OutputForms, infer_message
from serving.rpc_handlers import CallCount
from serving.status import status_of
from sharded_infer.errors import RequestError

_VERSIONED = PredictMethod.HTTP_INFER_VERSION
HEADER_LENGTH = "inference-header-content-length"
# What traces are continued by.
_TRACE_HEADERS = ("traceparent", "tracestate")
_READING_THREADS = 2
_QUICK_BYTES = 16 * 1024
_DRAIN_POLL_SECONDS = 0.02
_MOST_LENGTH_DIGITS = 18


class Predictions:
    """Answers the predict calls of one process. `answer` belongs to an event loop."""

    def __init__(
        self,
        config: ServerConfig,
        inference: Inference,
        calls: CallCount,
        wake: Callable[[], None],
    ) -> None:
        """Keeps what answers.

        Args:
            config: the server's settings.
            inference: answers the requests.
            calls: counts them.
            wake: has requests run that were submitted.
        """
        self._inference = inference
        self._calls = calls
        self._wake = wake
        self._most_calls = config.max_concurrent_requests
        self._most_bytes = config.max_message_bytes
        self._draining = False
        self._lock = threading.Lock()
        self._open = 0
        # Large requests are read beside the loop, so that they hold up nobody.
        self._threads = ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="http-read")

    def refuse(self) -> HttpAnswer | None:
        """Refuses a call before its body is read; None: it may come."""
        if self._draining:
            return refusal_answer(DRAINING.code, DRAINING.message)
        if self._calls.in_progress >= self._most_calls:
            refusal = self._inference.refuse_unread(self._most_calls)
            return refusal_answer(refusal.code, refusal.message, 1000)
        return None

    async def answer(
        self,
        names: Mapping[str, str],
        request: HttpRequest,
        gone: Callable[[], Awaitable[None]],
    ) -> HttpAnswer:
        """Answers a call.

        Args:
            names: the model's name, and perhaps its version.
            request: the request.
            gone: returns when the client is not there any more.
        """
        # Others may have come while this one's body was read.
        refused = self.refuse()
        if refused is not None:
            return refused
        loop = asyncio.get_running_loop()
        prediction = _Prediction(loop, request.headers.get("accept-encoding", ""))
        self._count(1)
        leaving = asyncio.ensure_future(gone())
        try:
            reading = None
            if _is_quickly_read(request):
                self._begin(prediction, names, request)
            else:
                run = loop.run_in_executor
                reading = run(self._threads, self._begin, prediction, names, request)
            waited: set[asyncio.Future[Any]] = {prediction.answer, leaving}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None:
                await reading
            if not prediction.answer.done() and prediction.job is not None:
                self._inference.dispatcher.cancel(prediction.job)
            # What runs already runs to its end: it counts as in progress until then.
            return await prediction.answer
        finally:
            leaving.cancel()
            self._count(-1)

    def drain(self) -> None:
        """Takes no more calls."""
        self._draining = True

    def wait(self, seconds: float) -> None:
        """Returns when all calls are answered, or time is up.

        Args:
            seconds: to wait at most.
        """
        end = monotonic() + seconds
        while self._open and monotonic() < end:
            sleep(_DRAIN_POLL_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change
        self._calls.add_predict(change)

    def _begin(
        self, prediction: "_Prediction", names: Mapping[str, str], request: HttpRequest
    ) -> None:
        try:
            message, forms = self._read(names, request)
        except Exception as error:
            prediction.refuse(*status_of(error))
            return
        prediction.job = self._inference.submit(
            message,
            None,
            lambda outcome: prediction.reply(outcome, forms),
            method=_VERSIONED if "version" in names else PredictMethod.HTTP_INFER,
            metadata=self._metadata(request),
        )
        if prediction.job is not None:
            self._wake()

    def _read(self, names: Mapping[str, str], request: HttpRequest) -> tuple[bytes, OutputForms]:
        encoding = request.headers.get("content-encoding", "")
        body = inflate(request.body, encoding, self._most_bytes)
        length = _header_length(request.headers.get(HEADER_LENGTH))
        return infer_message(names["model"], names.get("version", ""), body, length)

    def _metadata(self, request: HttpRequest) -> tuple[tuple[str, str], ...]:
        if not self._inference.traces:
            return ()
        headers = request.headers
        return tuple((name, headers[name]) for name in _TRACE_HEADERS if name in headers)


class _Prediction:
    """One call, between the event loop that waits for its answer and the threads that make it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, accept_encoding: str) -> None:
        self.answer: asyncio.Future[HttpAnswer] = loop.create_future()
        self.job: Job | None = None
        self._loop = loop
        self._accept_encoding = accept_encoding

    def reply(self, outcome: bytes | Refusal, forms: OutputForms) -> None:
        """Any thread's: a runner's, which has better to do than to write JSON."""
        self._loop.call_soon_threadsafe(self._finish, outcome, forms)

    def refuse(self, code: grpc.StatusCode, words: str) -> None:
        """Any thread's."""
        self._loop.call_soon_threadsafe(self._tell, refusal_answer(code, words))

    def _finish(self, outcome: bytes | Refusal, forms: OutputForms) -> None:
        self._tell(_answer_of(outcome, forms, self._accept_encoding))

    def _tell(self, answer: HttpAnswer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


def _answer_of(outcome: bytes | Refusal, forms: OutputForms, accept_encoding: str) -> HttpAnswer:
    if isinstance(outcome, Refusal):
        return refusal_answer(outcome.code, outcome.message, outcome.retry_ms)
    try:
        return infer_answer(outcome, forms, accept_encoding)
    except Exception as error:
        return refusal_answer(*status_of(error))


def _is_quickly_read(request: HttpRequest) -> bool:
    """Whether a request takes less to read than to hand to another thread and back."""
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
