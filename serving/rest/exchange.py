"""HTTP requests and answers as values, whatever server carries them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from serving.http_status import http_status
from sharded_infer.errors import ShardedInferError

JSON = "application/json"
BINARY = "application/octet-stream"


class HttpError(ShardedInferError):
    """Something that only HTTP knows: no such path, another method, a body that came too slowly.

    Attributes:
        status: HTTP's number.
        headers: more headers of the answer.
    """

    def __init__(
        self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Keeps the status."""
        super().__init__(message)
        self.status = status
        self.headers = headers


class RpcStatusError(ShardedInferError):
    """An answer that is an error, with its gRPC status code.

    Attributes:
        code: the gRPC status code.
        retry_ms: when to come again, milliseconds; None: nothing is known.
    """

    def __init__(self, code: grpc.StatusCode, message: str, retry_ms: int | None = None) -> None:
        """Keeps code and hint."""
        super().__init__(message)
        self.code = code
        self.retry_ms = retry_ms


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request whose body has been read.

    Attributes:
        method: such as GET.
        path: as it came, percent-encoded, without its query.
        query: what follows the question mark.
        headers: by lower-case name.
        body: its bytes.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What to send.

    Attributes:
        status: HTTP's number.
        body: its bytes.
        kind: the body's MIME type; empty: no header says one.
        headers: more names and values.
    """

    status: int
    body: bytes = b""
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def json_answer(value: Any) -> HttpAnswer:
    """An answer that says something."""
    return HttpAnswer(200, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def error_answer(status: int, words: str, headers: tuple[tuple[str, str], ...] = ()) -> HttpAnswer:
    """An answer that is an error, in the protocol's form.

    Args:
        status: HTTP's number.
        words: for people.
        headers: more names and values.
    """
    body = json.dumps({"error": words}, separators=(",", ":")).encode()
    return HttpAnswer(status, body, headers=headers)


def refusal_answer(code: grpc.StatusCode, words: str, retry_ms: float | None = None) -> HttpAnswer:
    """An answer that is an error, from a gRPC status code.

    Args:
        code: the status code.
        words: for people.
        retry_ms: when to come again, milliseconds; None: nothing is known.
    """
    headers: tuple[tuple[str, str], ...] = ()
    if retry_ms is not None:
        # HTTP counts whole seconds.
        headers = (("Retry-After", str(max(1, math.ceil(retry_ms / 1e3)))),)
    return error_answer(http_status(code), words, headers)
