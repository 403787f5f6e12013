"""HTTP requests and answers, independent of the HTTP server."""

import json
import math
import threading
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
    """A request in progress. Thread-safe."""

    def __init__(self, request: HttpRequest, respond: Callable[[HttpAnswer], None]) -> None:
        """Stores the request; `respond` sends its answer."""
        self.request = request
        self._respond = respond
        self._lock = threading.Lock()
        self._is_lost = False
        self._when_lost: Callable[[], None] | None = None

    @property
    def is_lost(self) -> bool:
        """True if the client has disconnected."""
        return self._is_lost

    def reply(self, answer: HttpAnswer) -> None:
        """Answers it, once."""
        with self._lock:
            self._when_lost = None
        self._respond(answer)

    def fail(self, error: Exception) -> None:
        """Answers it with an error."""
        self.reply(answer_of(error))

    def when_lost(self, leave: Callable[[], None]) -> None:
        """Calls `leave` if the client disconnects before its answer, or has already."""
        with self._lock:
            self._when_lost = leave
            if not self._is_lost:
                return
        leave()

    def lose(self) -> None:
        """Handles a client that has disconnected."""
        with self._lock:
            self._is_lost, leave = True, self._when_lost
        if leave is not None:
            leave()
