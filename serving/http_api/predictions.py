"""Predict calls over HTTP, with the same queue, limits and executor as those over gRPC."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic, sleep

from serving.abi.calls import Sender
from serving.config.server_config import ServerConfig
from serving.http_api.compression import chosen_encoding, inflate
from serving.http_api.exchange import HttpAnswer, HttpCall, HttpRequest, status_answer
from serving.http_api.infer_answer import infer_answer
from serving.http_api.infer_request import read_document
from serving.http_api.routes import INFER, ROUTES
from serving.inference.data_plane import DataPlane
from serving.inference.unusual_calls import Arrival, Metadata
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.request_tensors import RequestTensors
from serving.status import DRAINING, Status, status_of
from serving.transport.http2_server import Http2Server
from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import ModelInput

_VERSIONED = PredictMethod.HTTP_INFER_VERSION
HEADER_LENGTH = "inference-header-content-length"
# The W3C Trace Context headers, which continue a client's trace.
_TRACE_HEADERS = ("traceparent", "tracestate")
_READING_THREADS = 2
_QUICK_BYTES = 16 * 1024
_DRAIN_POLL_SECONDS = 0.02
_MOST_LENGTH_DIGITS = 18
# Retry time of a call that was refused because too many are in progress.
_RETRY_SECONDS = 1.0
_BY_OPERATION = dict(zip(INFER, (PredictMethod.HTTP_INFER, _VERSIONED), strict=True))
# By position in `transport_routes`, of which pages are the last.
_METHODS = tuple(_BY_OPERATION.get(route.operation) for route in ROUTES)


class Predictions:
    """Answers the predict calls of one process. Thread-safe.

    `wake` makes other threads run the submitted requests.
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
        self._lock, self._running = threading.Lock(), threading.Lock()
        self._warm_up: Callable[[], None] | None = None
        self._warm = threading.local()
        self._open = 0
        # These threads read large requests, so that others need not wait.
        self._threads = ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="http-read")

    def attach(self, server: Http2Server, respond: Callable[[int, HttpAnswer], None]) -> None:
        """Sets the server whose usual calls `take_usual` takes, and what answers a call there."""
        self._data_plane.compiled.attach_http(
            server.answering_http,
            _METHODS,
            server.flush,
            lambda number, answer, encoding: respond(number, infer_answer(answer, encoding)),
            _read_body,
        )

    def take_usual(
        self, events: int, count: int, event_of: Callable[[int], tuple[int, Metadata]]
    ) -> Sequence[int]:
        """As `DataPlane.take`; leaves all of them where calls may be refused."""
        if self._draining or self._calls.in_progress + count > self._most_calls:
            return range(count)
        return self._data_plane.take(events, count, _METHODS, event_of, sender=Sender.HTTP)

    def warm(self, run: Callable[[], None]) -> None:
        """Sets what a thread does once before it runs batches."""
        self._warm_up = run

    def run(self) -> None:
        """Runs taken calls on this thread, which brought them; one thread of the server does."""
        dispatcher = self._data_plane.dispatcher
        if not hasattr(self._warm, "done") and self._warm_up is not None:
            self._wake()
            self._warm.done = True
            self._warm_up()
            return
        if self._running.acquire(blocking=False):
            try:
                while dispatcher.work(gathered=True) and dispatcher.waiting[0]:
                    pass
            finally:
                self._running.release()
        elif dispatcher.scheduler.idle_slots <= 0:
            # Who runs looks once more when it has released the lock.
            return
        if dispatcher.waiting[0]:
            self._wake()

    def take(self, call: HttpCall, names: Mapping[str, str]) -> None:
        """Answers a call; the path's `names` are the model, and its version if it has one."""
        refused = self._refusal()
        if refused is not None:
            call.reply(status_answer(refused))
            return
        self._count(1)
        if _is_quickly_read(call.request):
            self._submit(call, names)
        else:
            self._threads.submit(self._submit, call, names)

    def drain(self) -> None:
        """Refuses further calls."""
        self._draining = True

    def wait(self, seconds: float) -> None:
        """Returns when all calls are answered or `seconds` have passed."""
        end = monotonic() + seconds
        while (self._open or self._calls.in_progress) and monotonic() < end:
            sleep(_DRAIN_POLL_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _refusal(self) -> Status | None:
        if self._draining:
            return DRAINING
        if self._calls.in_progress >= self._most_calls:
            refusal = self._data_plane.refuse_unread(self._most_calls)
            return replace(refusal, retry_seconds=_RETRY_SECONDS)
        return None

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change

    def _submit(self, call: HttpCall, names: Mapping[str, str]) -> None:
        try:
            if call.is_lost:
                return
            refusal = self._queue(call, names)
            if refusal is None:
                call.hand_over()
                self._wake()
            else:
                call.reply(status_answer(refusal))
        except Exception as error:
            call.reply(status_answer(status_of(error)))
        finally:
            self._count(-1)

    def _queue(self, call: HttpCall, names: Mapping[str, str]) -> Status | None:
        headers = call.request.headers
        encoding = headers.get("content-encoding", "")
        body = inflate(call.request.body, encoding, self._most_bytes)
        length = _header_length(headers.get(HEADER_LENGTH))
        document = read_document(names["model"], names.get("version", ""), body, length)
        arrival = Arrival(
            _VERSIONED if "version" in names else PredictMethod.HTTP_INFER,
            call.number,
            metadata=self._metadata(call.request),
            encoding=chosen_encoding(headers.get("accept-encoding", "")),
        )
        return self._data_plane.submit(document, arrival)

    def _metadata(self, request: HttpRequest) -> tuple[tuple[str, str], ...]:
        if not self._data_plane.traces:
            return ()
        headers = request.headers
        return tuple((name, headers[name]) for name in _TRACE_HEADERS if name in headers)


def _read_body(body: bytes, json_bytes: int | None, reader: InputReader) -> ModelInput:
    message = read_document("", "", body, json_bytes).message(reader, RequestTensors(None))
    return reader.read_message(message)


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
