"""Which gRPC status each exception becomes: one table."""

import logging
import secrets
from collections.abc import Callable, Mapping

import grpc

from kernels.errors import LostMemoryError
from serving.refusals import (
    AlreadyExistsError,
    CancelledError,
    DeadlineError,
    LimitError,
    NotOfferedError,
    PermissionDeniedError,
    QueueFullError,
    RateLimitError,
    UnauthenticatedError,
    UnavailableError,
)
from sharded_infer.errors import (
    ArtifactError,
    CapacityError,
    InputError,
    NotFoundError,
    RequestTooLargeError,
)

_log = logging.getLogger("sharded_infer")
# A name that a client sent may have megabytes; gRPC sends words in a header, of which clients take
# 8 KiB, with up to three characters for each of their bytes.
_LONGEST_WORDS = 600


# The first class that an exception is an instance of decides.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (RequestTooLargeError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (CapacityError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RateLimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (LimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (AlreadyExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (NotOfferedError, grpc.StatusCode.UNIMPLEMENTED),
    (CancelledError, grpc.StatusCode.CANCELLED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (ArtifactError, grpc.StatusCode.UNAVAILABLE),
    # Another server may have the file whole.
    (LostMemoryError, grpc.StatusCode.UNAVAILABLE),
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
)


def _no_fields() -> Mapping[str, object]:
    return {}


def status_of(
    error: Exception, log_fields: Callable[[], Mapping[str, object]] = _no_fields
) -> tuple[grpc.StatusCode, str]:
    """The code and message that a client gets for an exception.

    Args:
        error: what was raised while answering.
        log_fields: what the log says of the request beside a bug of ours.

    Returns:
        For a bug of ours, INTERNAL with an id that the log has too, and nothing of its insides.
    """
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, _shortened(str(error))
    error_id = secrets.token_hex(6)
    fields = {**log_fields(), "error_id": error_id}
    _log.error("internal error %s", error_id, exc_info=error, extra=fields)
    return grpc.StatusCode.INTERNAL, f"internal error {error_id}; the server's log has the details"


def _shortened(words: str) -> str:
    return words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…"
