"""A strict client on Python's `h2`, which can also send what other clients do not."""

import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame

INFER = "/inference.GRPCInferenceService/ModelInfer"
Headers = Sequence[tuple[str, str]]
Rewrite = Callable[[Frame], Iterable[Frame]]
_SECONDS = 60.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass(slots=True)
class Answer:
    """Received data of a stream: sizes of DATA frames, error code of RST_STREAM, end."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    sizes: list[int] = field(default_factory=list)
    trailers: dict[str, str] = field(default_factory=dict)
    reset: int | None = None
    ended: bool = False

    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.body):
            compressed, size = struct.unpack_from(">BI", self.body, at)
            assert not compressed and at + 5 + size <= len(self.body)
            found.append(self.body[at + 5 : at + 5 + size])
            at += 5 + size
        return found

    def status(self) -> str:
        return self.trailers.get("grpc-status", self.headers.get("grpc-status", "none"))


class Peer:
    """One connection; `last_stream` is that of the server's GOAWAY."""

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        settings: dict[SettingCodes, int] | None = None,
        piece: int = 1 << 20,
        source: str = "",
    ) -> None:
        """Connect to HOST:PORT and send the preface; writes have at most `piece` bytes."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        here = (source, 0) if source else None
        plain = socket.create_connection((host, int(port)), _SECONDS, here)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        self._piece = piece
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.http2 = h2.connection.H2Connection(config)
        if settings is not None:
            self.http2.local_settings = Settings(client=True, initial_values=settings)
            table = self.http2.local_settings.header_table_size
            self.http2.decoder.max_allowed_table_size = table
        self.http2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.acknowledged = 0
        self.pongs: list[bytes] = []
        self.closed = False
        self.last_stream: int | None = None
        self.send()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, rewrite: Rewrite | None = None) -> None:
        """Send the pending data of `h2`, each frame rewritten by `rewrite`."""
        data = self.http2.data_to_send()
        self.write(data if rewrite is None else b"".join(_rewritten(data, rewrite)))

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), self._piece):
            self._socket.sendall(data[at : at + self._piece])

    def begin(self, headers: Headers = (), *, path: str = INFER, ends: bool = False) -> int:
        stream = self.http2.get_next_available_stream_id()
        self.answers[stream] = Answer()
        first = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        given = [name for name, _ in headers]
        usual = [("content-type", "application/grpc"), ("te", "trailers")]
        kept = [pair for pair in (*first, *usual) if pair[0] not in given]
        fields = sorted([*kept, *headers], key=lambda pair: not pair[0].startswith(":"))
        self.http2.send_headers(stream, fields, end_stream=ends)
        return stream

    def call(
        self,
        message: bytes,
        headers: Headers = (),
        *,
        path: str = INFER,
        rewrite: Rewrite | None = None,
    ) -> Answer:
        """Send a call, as fast as the server's windows allow, and wait for its end."""
        stream = self.begin(headers, path=path)
        self.send(rewrite)
        self.put(stream, framed(message), ends=True, rewrite=rewrite)
        return self.wait(stream)

    def put(
        self,
        stream: int,
        data: bytes,
        *,
        ends: bool = False,
        padding: int | None = None,
        rewrite: Rewrite | None = None,
    ) -> None:
        while data:
            room = self.http2.local_flow_control_window(stream) - (padding or 0) - 1
            size = min(room, self.http2.max_outbound_frame_size - (padding or 0) - 1, len(data))
            if size <= 0:
                self.read()
                continue
            part, data = data[:size], data[size:]
            self.http2.send_data(stream, part, end_stream=ends and not data, pad_length=padding)
            self.send(rewrite)

    def wait(self, stream: int) -> Answer:
        answer = self.answers[stream]
        while not (answer.ended or answer.reset is not None):
            assert not self.closed, "the server closed the connection"
            self.read()
        return answer

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert not self.closed, "the server closed the connection"
            self.read()

    def read_to_end(self) -> None:
        while not self.closed:
            self.read()

    def read(self) -> None:
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return
        for event in self.http2.receive_data(data):
            self._take(event)
        if self.http2.state_machine.state is not h2.connection.ConnectionState.CLOSED:
            self.send()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.SettingsAcknowledged):
            self.acknowledged += 1
        elif isinstance(event, h2.events.PingAckReceived):
            self.pongs.append(bytes(event.ping_data or b""))
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.last_stream = event.last_stream_id
        answer = self.answers.get(getattr(event, "stream_id", None) or 0)
        if answer is not None:
            self._take_of_stream(event, answer)

    def _take_of_stream(self, event: h2.events.Event, answer: Answer) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            answer.headers = dict(event.headers or ())
        elif isinstance(event, h2.events.DataReceived):
            assert event.data is not None and event.stream_id is not None
            answer.body += event.data
            answer.sizes.append(len(event.data))
            if event.flow_controlled_length:
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = dict(event.headers or ())
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = int(event.error_code or 0)
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def _rewritten(data: bytes, rewrite: Rewrite) -> Iterable[bytes]:
    if data.startswith(_PREFACE):
        yield _PREFACE
        data = data[len(_PREFACE) :]
    while data:
        frame, size = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + size]))
        data = data[9 + size :]
        for one in rewrite(frame):
            yield one.serialize()
