"""The root of the project's exceptions; every package's own errors derive from it."""


class ShardedInferError(Exception):
    """Something that the project refuses or could not do; the message is for users."""


class InputError(ShardedInferError, ValueError):
    """Invalid input; the message has what was given and what was expected."""


class LostMemoryError(ShardedInferError):
    """A mapped file has lost bytes, so data read from it may be wrong."""


class RowReadError(ShardedInferError):
    """Rows that are not in memory, and that a file did not give in time or cannot give."""


class CompiledCodeError(ShardedInferError):
    """The installation lacks compiled code."""


class InternalError(ShardedInferError, RuntimeError):
    """A broken invariant: a bug of this project, never the caller's fault."""
