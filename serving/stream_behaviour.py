"""ModelStreamInfer as gRPC for Python calls it: two threads for each stream, none for a request.

Streams have threads of their own, so that those which stay open leave the other calls theirs.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from serving.config import ServerConfig
from serving.infer_stream import DRAINING, InferStream, StreamLimits
from serving.inference import Inference, Refusal
from serving.rpc_handlers import CallCount
from serving.stream_response import stream_error, stream_response

# Threads that refuse streams, once as many are open as may be.
_REFUSING_THREADS = 2
# As Triton has it: the first error ends the stream, with a status code.
_STRICT = ("triton_grpc_error", "true")


class StreamBehaviour:
    """Answers the streams of one process."""

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
        self._most_streams = config.max_streams
        self._limits = StreamLimits(config.max_stream_requests, self._refusal, calls.add_predict)
        self._most_calls = config.max_concurrent_requests
        self._calls = calls
        self._wake = wake
        self._lock = threading.Lock()
        self._streams: set[InferStream] = set()
        self._draining = False
        # Where gRPC for Python looks for the threads to call this on.
        self.experimental_thread_pool = ThreadPoolExecutor(
            config.max_streams + _REFUSING_THREADS, thread_name_prefix="stream"
        )

    def __call__(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answers a stream."""
        metadata = context.invocation_metadata() if self._inference.traces else ()
        stream = InferStream(self._inference, self._limits, self._wake, metadata)
        refusal = self._enter(stream)
        if refusal is not None:
            context.abort(refusal.code, refusal.message)

        def ended() -> None:
            with self._lock:
                self._streams.discard(stream)
            stream.end()

        if not context.add_callback(ended):
            ended()
            return iter(())
        reader = threading.Thread(
            target=stream.read,
            args=(messages, context.time_remaining),
            name="stream-read",
            daemon=True,
        )
        reader.start()
        return _answers(stream, context)

    def drain(self) -> None:
        """Takes no more streams, and ends those that are open when what they sent is answered."""
        with self._lock:
            self._draining = True
            streams = list(self._streams)
        for stream in streams:
            stream.drain()

    def _enter(self, stream: InferStream) -> Refusal | None:
        with self._lock:
            if self._draining:
                return DRAINING
            if len(self._streams) >= self._most_streams:
                words = f"{self._most_streams} streams are open, no more are taken in"
                return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
            self._streams.add(stream)
        return None

    def _refusal(self) -> Refusal | None:
        if self._calls.in_progress < self._most_calls:
            return None
        return self._inference.refuse_unread(self._most_calls)


def _answers(stream: InferStream, context: grpc.ServicerContext) -> Iterator[bytes]:
    strict = _STRICT in {(pair[0], pair[1]) for pair in context.invocation_metadata()}
    for finished in stream.answers():
        outcome = finished.outcome
        if not isinstance(outcome, Refusal):
            yield stream_response(outcome)
        elif strict:
            context.abort(outcome.code, outcome.message)
        else:
            yield stream_error(outcome.message, finished.message)
    if stream.drained:
        context.abort(DRAINING.code, DRAINING.message)
