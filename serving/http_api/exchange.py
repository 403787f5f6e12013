"""HTTP requests and answers as values, independent of the HTTP server."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.status import Status
from sharded_infer.errors import ShardedInferError

JSON = "application/json"
BINARY = "application/octet-stream"


class HttpError(ShardedInferError):
    """An error of HTTP, such as an unknown path; `headers` are added to the answer."""

    def __init__(
        self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class StatusError(ShardedInferError):
    """Carries a `Status` to the code that sends the error answer."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: percent-encoded path, headers by lower-case name, body empty until it is read."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer to send; `kind` is its MIME type, empty for no Content-Type header."""

    status: int
    body: bytes = b""
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def json_answer(value: Any) -> HttpAnswer:
    """A successful answer with a JSON value."""
    return HttpAnswer(200, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def error_answer(status: int, words: str, headers: tuple[tuple[str, str], ...] = ()) -> HttpAnswer:
    """An error answer, in the protocol's form."""
    body = json.dumps({"error": words}, separators=(",", ":")).encode()
    return HttpAnswer(status, body, headers=headers)


def status_answer(status: Status) -> HttpAnswer:
    """An error answer, with the HTTP status of the gRPC code."""
    headers: tuple[tuple[str, str], ...] = ()
    if status.retry_seconds is not None:
        # Retry-After counts whole seconds.
        headers = (("Retry-After", str(max(1, math.ceil(status.retry_seconds)))),)
    return error_answer(status.code.http_status, status.message, headers)
