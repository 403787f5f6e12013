"""A single-threaded generator of predict calls over persistent HTTP/1.1 connections.

A connection carries one call at a time. Python takes about 40 µs a call, so this generator suits
latencies of few calls in flight. Its `cpu_share` shows when it is the limit.
"""

import json
import re
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from tritonclient.grpc import service_pb2

from serving.bench.load.bounds import check_count, check_positive
from serving.bench.load.result import LoadResult
from serving.bench.load.target import Target
from serving.status import StatusCode
from sharded_infer.errors import InputError

_CONNECT_SECONDS = 5.0
_READ_BYTES = 1 << 18
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")
_CLOSE = re.compile(rb"(?i)\r\nconnection: *close\r\n")
_CODES = {code.http_status: code.number for code in reversed(StatusCode)} | {200: 0}
_UNAVAILABLE = StatusCode.UNAVAILABLE.number
_INTERNAL = StatusCode.INTERNAL.number


def http_message(message: bytes, target: Target) -> bytes:
    """Convert a ModelInferRequest with raw contents to HTTP; the target's path is not used."""
    model, text, contents = binary_body(message)
    body = text + contents
    token = "" if target.token is None else f"Authorization: Bearer {target.token}\r\n"
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\n"
        f"Host: {target.authority}\r\n{token}"
        f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def binary_body(message: bytes) -> tuple[str, bytes, bytes]:
    """Model, JSON and binary tensors of a serialized ModelInferRequest with raw contents."""
    request = service_pb2.ModelInferRequest.FromString(message)
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": len(raw)},
        }
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    ]
    document = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    text = json.dumps(document, separators=(",", ":")).encode()
    return request.model_name, text, b"".join(request.raw_input_contents)


def run_http_closed(
    target: Target,
    messages: Sequence[bytes],
    *,
    concurrency: int,
    seconds: float,
    warm_up_seconds: float = 0.0,
    keep_responses: bool = True,
) -> LoadResult:
    """Keep a number of calls open, one a connection: the next call begins when one ends.

    Calls begin for `seconds` after the warm-up, which is not part of the result. Statuses are those
    of gRPC; calls on a lost connection are UNAVAILABLE. With `keep_responses` the result has the
    body of the first answer to each message. Raises InputError if an argument is outside its range,
    or the server does not answer.
    """
    check_count("concurrency", concurrency)
    check_positive("seconds", seconds)
    requests = [http_message(message, target) for message in messages]
    load = _Load(target, requests, warm_up_seconds + seconds, keep_responses)
    begin, cpu_begin = time.monotonic(), time.thread_time()
    load.run(concurrency)
    elapsed = time.monotonic() - begin
    return load.result(
        warm_up_seconds, seconds, elapsed, (time.thread_time() - cpu_begin) / elapsed
    )


@dataclass(slots=True)
class _Connection:
    number: int
    socket: socket.socket
    message: int = 0
    begun: float = 0.0
    came: bytearray = field(default_factory=bytearray)
    calls: int = 0
    reconnects: int = 0


class _Load:
    def __init__(
        self, target: Target, requests: list[bytes], seconds: float, keep_responses: bool
    ) -> None:
        self._target = target
        self._requests = requests
        self._seconds = seconds
        self._keep = keep_responses
        self._next = 0
        # Message, start, latency, code and bytes of each finished call.
        self._calls: list[tuple[int, float, float, int, int]] = []
        self._responses: dict[int, bytes] = {}
        self._errors: dict[int, str] = {}
        self._connections: list[_Connection] = []
        self._start = 0.0

    def run(self, concurrency: int) -> None:
        with selectors.DefaultSelector() as selector:
            self._connections = [_Connection(n, self._connect()) for n in range(concurrency)]
            self._start = time.monotonic()
            for connection in self._connections:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                self._begin(connection)
            while selector.get_map():
                for key, _ in selector.select():
                    self._read(selector, key.data)
        for connection in self._connections:
            connection.socket.close()

    def _connect(self) -> socket.socket:
        target = self._target
        try:
            made = socket.create_connection((target.host, target.port), _CONNECT_SECONDS)
        except OSError as error:
            raise InputError(f"{target.authority}: no connection: {error}") from error
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _begin(self, connection: _Connection) -> None:
        connection.message = self._next % len(self._requests)
        self._next += 1
        connection.came.clear()
        connection.calls += 1
        connection.begun = time.monotonic()
        # A lost connection shows on reading.
        with suppress(OSError):
            connection.socket.sendall(self._requests[connection.message])

    def _read(self, selector: selectors.BaseSelector, connection: _Connection) -> None:
        try:
            part = connection.socket.recv(_READ_BYTES)
        except OSError:
            part = b""
        connection.came += part
        end = connection.came.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(connection.came, 0, end) if end > 3 else None
        if length is not None and len(connection.came) >= end + int(length[1]):
            self._over(connection, end, time.monotonic())
            lost = _CLOSE.search(connection.came, 0, end) is not None
        elif part:
            return
        else:
            self._over(connection, 0, time.monotonic())
            lost = True
        is_last = time.monotonic() - self._start >= self._seconds
        if lost or is_last:
            selector.unregister(connection.socket)
        if is_last:
            return
        if lost:
            connection.socket.close()
            connection.socket = self._connect()
            connection.reconnects += 1
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._begin(connection)

    def _over(self, connection: _Connection, end: int, now: float) -> None:
        code, body = _UNAVAILABLE, bytes(connection.came[end:])
        if end:
            code = _CODES.get(int(connection.came[9:12]), _INTERNAL)
        if code:
            words = body.decode(errors="replace")[:256] if end else "the connection was lost"
            self._errors.setdefault(code, words)
        elif self._keep:
            self._responses.setdefault(connection.message, body)
        begun = connection.begun
        self._calls.append((connection.message, begun - self._start, now - begun, code, len(body)))

    def result(self, warm_up: float, window: float, elapsed: float, cpu_share: float) -> LoadResult:
        calls = sorted((c for c in self._calls if c[1] >= warm_up), key=lambda call: call[1])
        message, begun, latency, code, size = (
            np.array(column) for column in (zip(*calls, strict=True) if calls else ((),) * 5)
        )
        begun = begun.astype(np.float64) - warm_up
        ends = begun + latency
        return LoadResult(
            scheduled=begun,
            sent=begun.copy(),
            latency=latency.astype(np.float64),
            lag=np.zeros(len(calls)),
            codes=code.astype(np.uint8),
            message_index=message.astype(np.int32),
            response_bytes=size.astype(np.int32),
            began=self._start + warm_up,
            seconds=elapsed - warm_up,
            window_seconds=window,
            ok_in_window=int(np.count_nonzero((code == 0) & (ends <= window))),
            responses=self._responses,
            errors=self._errors,
            connection_calls=np.array([c.calls for c in self._connections], np.int64),
            reconnects=np.array([c.reconnects for c in self._connections], np.int64),
            cpu_share=cpu_share,
        )
