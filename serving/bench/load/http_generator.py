"""A generator of predict calls over persistent HTTP/1.1 connections, each on a thread.

A connection carries one call at a time. Python takes about 40 µs a call, so this generator suits
latencies of few calls in flight. Its `cpu_share` shows when it is the limit.
"""

import json
import re
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import numpy as np
from tritonclient.grpc import service_pb2

from serving.bench.load.result import CALL, LoadResult
from serving.bench.load.target import Target
from serving.status import StatusCode
from sharded_infer.errors import InputError

_COLUMNS = ("scheduled", "latency", "message", "response_bytes", "code")
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
    body of the first answer to each message. Raises InputError if the server does not answer.
    """
    requests = [http_message(message, target) for message in messages]
    numbers = count()
    calls: list[tuple[float, float, int, int, int]] = []  # `_COLUMNS`
    responses: dict[int, bytes] = {}
    errors: dict[int, str] = {}
    connections = [_connect(target) for _ in range(concurrency)]
    start, cpu_start = time.monotonic(), time.process_time()

    def work(connection: socket.socket) -> tuple[int, int]:
        """Calls and reconnects of a connection."""
        done = reconnects = 0
        while (begun := time.monotonic() - start) < warm_up_seconds + seconds:
            message = next(numbers) % len(requests)
            code, body, is_lost = _exchange(connection, requests[message])
            calls.append((begun, time.monotonic() - start - begun, message, len(body), code))
            done += 1
            if code:
                errors.setdefault(code, body.decode(errors="replace")[:256])
            elif keep_responses:
                responses.setdefault(message, body)
            if is_lost:
                connection.close()
                connection = _connect(target)
                reconnects += 1
        connection.close()
        return done, reconnects

    with ThreadPoolExecutor(concurrency) as threads:
        counts = np.array(list(threads.map(work, connections)), np.int64)
    elapsed = time.monotonic() - start
    outcomes = np.zeros(len(calls), CALL)
    for name, column in zip(_COLUMNS, zip(*sorted(calls), strict=True), strict=False):
        outcomes[name] = column
    outcomes["taken"] = outcomes["sent"] = outcomes["scheduled"]
    return LoadResult.of(
        outcomes,
        start=warm_up_seconds,
        began=start,
        seconds=elapsed,
        window_seconds=seconds,
        responses=responses,
        errors=errors,
        connection_calls=counts[:, 0],
        reconnects=counts[:, 1],
        cpu_share=(time.process_time() - cpu_start) / elapsed,
    )


def _connect(target: Target) -> socket.socket:
    try:
        made = socket.create_connection((target.host, target.port), _CONNECT_SECONDS)
    except OSError as error:
        raise InputError(f"{target.authority}: no connection: {error}") from error
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _exchange(connection: socket.socket, request: bytes) -> tuple[int, bytes, bool]:
    """Status and body of an answer, and whether another connection is needed for the next."""
    came = bytearray()
    with suppress(OSError):
        connection.sendall(request)
        while part := connection.recv(_READ_BYTES):
            came += part
            end = came.find(b"\r\n\r\n") + 4
            length = _LENGTH.search(came, 0, end) if end > 3 else None
            if length is not None and len(came) >= end + int(length[1]):
                code = _CODES.get(int(came[9:12]), _INTERNAL)
                return code, bytes(came[end:]), _CLOSE.search(came, 0, end) is not None
    return _UNAVAILABLE, b"the connection was lost", True
