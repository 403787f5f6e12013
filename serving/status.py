"""Status codes, and the code of each exception."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from kernels.errors import LostMemoryError, RowReadError
from serving.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineError,
    LimitError,
    NotOfferedError,
    PermissionDeniedError,
    QueueFullError,
    UnavailableError,
)
from sharded_infer.errors import (
    ArtifactError,
    CapacityError,
    InputError,
    NotFoundError,
    RequestTooLargeError,
    ShardHostError,
)

_log = logging.getLogger("sharded_infer")
# A client's name may have megabytes. gRPC sends the message in a header, of which clients accept 8
# KiB, with up to three characters for each of its bytes.
_LONGEST_MESSAGE = 600


class StatusCode(Enum):
    """gRPC's status codes (grpc/doc/statuscodes.md), each with an HTTP status.

    Codes that no answer here has are 500 in HTTP.
    """

    OK = 0, 200
    # No standard has a number for a client that has gone, which does not read it.
    CANCELLED = 1, 499
    UNKNOWN = 2, 500
    INVALID_ARGUMENT = 3, 400
    DEADLINE_EXCEEDED = 4, 504
    NOT_FOUND = 5, 404
    ALREADY_EXISTS = 6, 409
    PERMISSION_DENIED = 7, 403
    RESOURCE_EXHAUSTED = 8, 429
    FAILED_PRECONDITION = 9, 500
    ABORTED = 10, 500
    OUT_OF_RANGE = 11, 500
    UNIMPLEMENTED = 12, 501
    INTERNAL = 13, 500
    UNAVAILABLE = 14, 503
    DATA_LOSS = 15, 500
    UNAUTHENTICATED = 16, 401

    def __init__(self, number: int, http_status: int) -> None:
        self.number = number
        self.http_status = http_status


@dataclass(frozen=True, slots=True)
class Status:
    """An error answer; no `retry_seconds` means an unknown retry time."""

    code: StatusCode
    message: str
    retry_seconds: float | None = None


DRAINING = Status(StatusCode.UNAVAILABLE, "the server is draining")

# The first class that matches an exception decides.
_CODES: tuple[tuple[type[Exception], StatusCode], ...] = (
    (NotFoundError, StatusCode.NOT_FOUND),
    (RequestTooLargeError, StatusCode.RESOURCE_EXHAUSTED),
    (QueueFullError, StatusCode.RESOURCE_EXHAUSTED),
    (CapacityError, StatusCode.RESOURCE_EXHAUSTED),
    (PermissionDeniedError, StatusCode.PERMISSION_DENIED),
    (LimitError, StatusCode.RESOURCE_EXHAUSTED),
    (AlreadyExistsError, StatusCode.ALREADY_EXISTS),
    (NotOfferedError, StatusCode.UNIMPLEMENTED),
    (CancelledError, StatusCode.CANCELLED),
    (UnavailableError, StatusCode.UNAVAILABLE),
    (DeadlineError, StatusCode.DEADLINE_EXCEEDED),
    (ArtifactError, StatusCode.UNAVAILABLE),
    # Another server may have the file whole.
    (LostMemoryError, StatusCode.UNAVAILABLE),
    (RowReadError, StatusCode.UNAVAILABLE),
    (ShardHostError, StatusCode.UNAVAILABLE),
    (InputError, StatusCode.INVALID_ARGUMENT),
)


def _no_fields() -> Mapping[str, object]:
    return {}


def status_of(
    error: Exception, log_fields: Callable[[], Mapping[str, object]] = _no_fields
) -> Status:
    """Status of an exception for a client.

    A bug of ours becomes INTERNAL without internals, with an id that is logged with the request's
    `log_fields`.
    """
    for kind, code in _CODES:
        if isinstance(error, kind):
            retry = None
            if isinstance(error, QueueFullError):
                retry = error.retry_seconds
            return Status(code, _shortened(str(error)), retry)
    error_id = secrets.token_hex(6)
    fields = {**log_fields(), "error_id": error_id}
    _log.error("internal error %s", error_id, exc_info=error, extra=fields)
    words = f"internal error {error_id}; the server's log has the details"
    return Status(StatusCode.INTERNAL, words)


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
