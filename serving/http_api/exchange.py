"""HTTP requests and answers, independent of the HTTP server."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.status import Status, status_of
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
    """A request: percent-encoded path, headers by lower-case name, and its client's address."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""


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


def answer_of(error: Exception) -> HttpAnswer:
    """HTTP answer for an exception that was raised while answering."""
    if isinstance(error, HttpError):
        return error_answer(error.status, str(error), error.headers)
    if isinstance(error, StatusError):
        return status_answer(error.status)
    return status_answer(status_of(error))


class HttpCall:
    """A request in progress, with its number in the transport. Thread-safe.

    Attributes:
        is_lost: the client has disconnected.
    """

    def __init__(
        self, number: int, request: HttpRequest, respond: Callable[[HttpAnswer | None], None]
    ) -> None:
        """Stores the request; `respond` sends its answer, or gets None if others send it."""
        self.number, self.request = number, request
        self._respond = respond
        self.is_lost = False

    def reply(self, answer: HttpAnswer) -> None:
        """Answers it, once."""
        self._respond(answer)

    def fail(self, error: Exception) -> None:
        """Answers it with an error."""
        self.reply(answer_of(error))

    def hand_over(self) -> None:
        """Leaves its answer to compiled code."""
        self._respond(None)
