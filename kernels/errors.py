"""The root of the project's exceptions; every package's own errors derive from it."""


class ShardedInferError(Exception):
    """Something the project refuses or could not do, said in words meant for its user."""


class InputError(ShardedInferError, ValueError):
    """Input that cannot be accepted; the message names what came and what was expected."""


class LostMemoryError(ShardedInferError):
    """A mapped file that has lost bytes, so that what was read of it may not have been there."""


class InternalError(ShardedInferError, RuntimeError):
    """A broken invariant: a bug of this project, never the caller's fault."""
