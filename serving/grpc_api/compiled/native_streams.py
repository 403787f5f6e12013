"""ModelStreamInfer calls of one native transport."""

from serving.abi.transport import EventKind
from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.native_stream import NativeStream
from serving.grpc_api.streams.open_streams import OpenStreams
from serving.inference.data_plane import DataPlane
from serving.transport.events import Event
from serving.transport.http2_server import Http2Server


class NativeStreams:
    """Passes events on to their streams."""

    def __init__(self, server: Http2Server, data_plane: DataPlane, config: ServerConfig) -> None:
        self._server = server
        self._data_plane = data_plane
        self._most_calls = config.max_concurrent_requests
        self._open = OpenStreams(config.max_streams, data_plane.count_dropped)
        self._streams: dict[int, NativeStream] = {}

    def take(self, event: Event, message: bytes) -> None:
        """Handles an event, in the order of its stream. `Dispatcher.work` follows."""
        if event.kind is EventKind.OPENED:
            opened = NativeStream(self._server, self._data_plane, event, self._most_calls)
            refusal = self._open.enter(opened)
            if refusal is None:
                self._streams[event.call] = opened
            else:
                self._server.finish(event.call, refusal)
            return
        stream = self._streams.get(event.call)
        if stream is None:
            return
        if event.kind is EventKind.MESSAGE:
            stream.message_came(event, message)
        elif event.kind is EventKind.HALF_CLOSED:
            stream.half_closed()
        else:
            stream.end()
            self._open.leave(stream)
            del self._streams[event.call]

    def drain(self) -> None:
        """Accepts no more streams; ends each open one once its received requests are answered."""
        self._open.drain()
