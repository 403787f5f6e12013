"""Errors of requests that are not run; `serving/status.py` maps them to status codes."""

from sharded_infer.errors import ShardedInferError


class UnavailableError(ShardedInferError):
    """The server, or the model, is loading or draining; the same request may work later."""


class UnservedError(ShardedInferError):
    """None of a server's models can be served; the message has each reason."""


class DeadlineError(ShardedInferError):
    """The request's deadline has passed, or would before its answer."""


class CancelledError(ShardedInferError):
    """The client has cancelled the request."""


class LimitError(ShardedInferError):
    """A limit of the server is reached."""


class AlreadyExistsError(ShardedInferError):
    """The object to create exists already."""


class NotOfferedError(ShardedInferError):
    """A feature of the protocol that this server lacks."""


class PermissionDeniedError(ShardedInferError):
    """The call's token, or its port, does not allow it."""


class QueueFullError(ShardedInferError):
    """A queue limit is reached, probably until `retry_seconds` have passed."""

    def __init__(self, message: str, *, retry_seconds: float) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class PromotionError(ShardedInferError):
    """An incomplete promotion; its label's history has the reason."""
