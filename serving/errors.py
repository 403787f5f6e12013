"""Why a request is not run; each becomes a status code in `serving/status.py`."""

from sharded_infer.errors import ShardedInferError


class UnavailableError(ShardedInferError):
    """The server, or the model, is loading or draining; the same request may work later."""


class UnservedError(ShardedInferError):
    """A server that has nothing to serve: each of its models says why."""


class DeadlineError(ShardedInferError):
    """The request's deadline has passed, or would before an answer was there."""


class CancelledError(ShardedInferError):
    """The client has given the request up."""


class LimitError(ShardedInferError):
    """There are as many of something as the server keeps."""


class AlreadyExistsError(ShardedInferError):
    """What a client wants to make is there already."""


class NotOfferedError(ShardedInferError):
    """Something of the protocol that this server does not do."""


class UnauthenticatedError(ShardedInferError):
    """A call without a token, or with one that nobody knows."""


class PermissionDeniedError(ShardedInferError):
    """A call whose token, or whose port, does not allow it."""


class QueueFullError(ShardedInferError):
    """As much waits already as may.

    Attributes:
        retry_seconds: when there will probably be room.
    """

    def __init__(self, message: str, *, retry_seconds: float) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class RateLimitError(ShardedInferError):
    """A client that calls more often than it may.

    Attributes:
        retry_seconds: when it may again.
    """

    def __init__(self, message: str, *, retry_seconds: float) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class PromotionError(ShardedInferError):
    """A promotion that did not reach its end: the reason is in the history of its label."""
