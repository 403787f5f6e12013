"""The exceptions of the model layer, one class for each case that callers may distinguish."""

from kernels.errors import InputError, InternalError, ShardedInferError

__all__ = [
    "ArtifactError",
    "CapacityError",
    "DeviceError",
    "GateError",
    "InputError",
    "InternalError",
    "MisplacedError",
    "NotFoundError",
    "PlanError",
    "RequestError",
    "RequestTooLargeError",
    "ShardHostError",
    "ShardedInferError",
    "SignatureError",
    "SpecError",
    "StorageError",
    "TowerError",
    "WeightsError",
]


class SpecError(InputError):
    """A model description inconsistent with itself or the weights."""


class WeightsError(InputError):
    """Trained weights that are missing, misshapen, of the wrong dtype or unreadable."""


class PlanError(InputError):
    """No plan exists for these tables on this topology, or a given plan is invalid."""


class DeviceError(InputError):
    """A machine without the required devices, or their prerequisites."""


class TowerError(InputError):
    """A tower that cannot be exported, or a stored program that must not be loaded."""


class ArtifactError(InputError):
    """A published version that is incomplete, altered or of an unknown format."""


class MisplacedError(ArtifactError):
    """A version under a name that is not its own, such as a copied folder."""


class SignatureError(ArtifactError):
    """A version that no trusted key has signed."""


class GateError(ShardedInferError):
    """A version whose golden requests differ from the fp32 model by more than the spec allows."""


class CapacityError(ShardedInferError):
    """A version that does not fit in the memory that is left."""


class StorageError(ShardedInferError):
    """A disk that is full or not writable; nothing was left on it."""


class NotFoundError(ShardedInferError, LookupError):
    """A repository, model, version or label that does not exist."""


class RequestError(InputError):
    """A predict request that is malformed, incomplete or holds ids outside their tables."""


class RequestTooLargeError(RequestError):
    """A well-formed request that exceeds a configured limit."""


class ShardHostError(ShardedInferError):
    """A shard host whose responses contradict its share; the message names the host."""
