"""ModelStreamInfer for gRPC for Python, with two threads for each stream and none for a request.

Streams have their own threads, so that open streams do not take threads from other calls.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from serving.config.server_config import ServerConfig
from serving.grpc_api.status_codes import abort
from serving.grpc_api.streams.infer_stream import InferStream
from serving.grpc_api.streams.open_streams import OpenStreams
from serving.grpc_api.streams.stream_messages import stream_error, stream_response
from serving.inference.data_plane import DataPlane
from serving.status import DRAINING, Status

# Threads that refuse further streams once the limit is reached.
_REFUSING_THREADS = 2
# Triton's option: the first error ends the stream with a status code.
STRICT = ("triton_grpc_error", "true")


class StreamBehaviour:
    """Answers the streams of one process.

    `wake` makes another thread run the submitted requests.
    """

    def __init__(
        self,
        config: ServerConfig,
        data_plane: DataPlane,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._data_plane = data_plane
        self._wake = wake
        self._open = OpenStreams(config.max_streams, data_plane.count_dropped)
        # gRPC for Python calls this behaviour on these threads.
        self.experimental_thread_pool = ThreadPoolExecutor(
            config.max_streams + _REFUSING_THREADS, thread_name_prefix="stream"
        )

    def __call__(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answers one stream."""
        metadata = context.invocation_metadata() if self._data_plane.traces else ()
        stream = InferStream(
            self._data_plane,
            most_requests=self._config.max_stream_requests,
            most_calls=self._config.most_concurrent_requests,
            wake=self._wake,
            metadata=metadata,
        )
        refusal = self._open.enter(stream)
        if refusal is not None:
            abort(context, refusal)

        def ended() -> None:
            self._open.leave(stream)
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
        """Accepts no more streams; ends each open one once its received requests are answered."""
        self._open.drain()


def _answers(stream: InferStream, context: grpc.ServicerContext) -> Iterator[bytes]:
    strict = STRICT in {(pair[0], pair[1]) for pair in context.invocation_metadata()}
    for finished in stream.answers():
        outcome = finished.outcome
        if not isinstance(outcome, Status):
            yield stream_response(outcome)
        elif strict:
            abort(context, outcome)
        else:
            yield stream_error(outcome.message, finished.message)
    if stream.given_way is not None:
        abort(context, stream.given_way)
    if stream.drained:
        abort(context, DRAINING)
