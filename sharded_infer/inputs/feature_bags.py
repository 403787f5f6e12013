"""The separately checked bags of one feature of a request."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import RequestError

Array = NDArray[np.generic]

INTEGERS = (np.dtype(np.int64), np.dtype(np.int32))
FP32 = (np.dtype(np.float32),)
INTEGERS_SAID, LENGTHS_SAID, FLOATS_SAID = "INT64 or INT32", "INT32 or INT64", "FP32"


class FeatureBags(NamedTuple):
    """One feature's ids."""

    values: NDArray[np.int64]  # [N]
    lengths: NDArray[np.int64]  # [b]
    weights: NDArray[np.float32] | None  # [N]


def read_feature(
    name: str, array: Array, inputs: Mapping[str, Array], companion: str | None
) -> FeatureBags:
    """Read a feature's ids, lengths and weights.

    Without `companion`, the input with the lengths, all samples have equally many ids. Raises
    RequestError, naming the input, for a wrong dtype or shape or inconsistent lengths.
    """
    ids = checked(name, array, INTEGERS, INTEGERS_SAID)
    weights = read_weights(f"{name}.weights", inputs, ids.shape)
    values = ids.reshape(-1).astype(np.int64, copy=False)
    if companion is not None:
        lengths = read_lengths(companion, inputs)
        if ids.ndim == 2 and len(ids) == len(lengths):
            return _unpadded(name, ids, companion, lengths, weights)
        if ids.ndim != 1:
            raise RequestError(
                f"input {name!r}: with {companion!r}, expected [N] and [B], or [B, L] and [B], got "
                f"{list(ids.shape)} and {list(lengths.shape)}"
            )
        return FeatureBags(values, whole_lengths(companion, lengths, len(values)), weights)
    if ids.ndim not in (1, 2):
        raise RequestError(f"input {name!r}: expected [B] or [B, L], got {list(ids.shape)}")
    per_sample = 1 if ids.ndim == 1 else ids.shape[1]
    return FeatureBags(values, np.full(ids.shape[0], per_sample, np.int64), weights)


def read_lengths(name: str, inputs: Mapping[str, Array]) -> NDArray[np.int64]:
    """Nonnegative lengths `[B]`; RequestError, naming the input, otherwise."""
    lengths = checked(name, inputs[name], INTEGERS, LENGTHS_SAID)
    if lengths.ndim != 1:
        raise RequestError(
            f"input {name!r}: expected {LENGTHS_SAID} [B], got {list(lengths.shape)}"
        )
    whole = lengths.astype(np.int64)
    if whole.size and int(whole.min()) < 0:
        raise RequestError(f"input {name!r}: a length of {int(whole.min())}, expected 0 or more")
    return whole


def _unpadded(
    name: str,
    ids: Array,
    companion: str,
    lengths: NDArray[np.int64],
    weights: NDArray[np.float32] | None,
) -> FeatureBags:
    if lengths.size and int(lengths.max()) > ids.shape[1]:
        raise RequestError(
            f"input {companion!r}: a length of {int(lengths.max())}, but {name!r} has "
            f"{counted(ids.shape[1], 'id')} a sample"
        )
    kept = np.arange(ids.shape[1]) < lengths[:, None]
    scales = None if weights is None else weights.reshape(ids.shape)[kept]
    return FeatureBags(ids[kept].astype(np.int64, copy=False), lengths, scales)


def read_weights(
    name: str, inputs: Mapping[str, Array], shape: tuple[int, ...]
) -> NDArray[np.float32] | None:
    """Weights `[N]` of ids; None if none came, RequestError for another dtype or shape."""
    if name not in inputs:
        return None
    weights = checked(name, inputs[name], FP32, FLOATS_SAID)
    if weights.shape != shape:
        raise RequestError(
            f"input {name!r}: expected FP32 {list(shape)} like its ids, got {list(weights.shape)}"
        )
    return weights.reshape(-1).astype(np.float32, copy=False)


def whole_lengths(name: str, lengths: Array, total: int) -> NDArray[np.int64]:
    """Nonnegative lengths that sum to `total`; RequestError, naming the input, otherwise."""
    whole = lengths.astype(np.int64)
    if whole.size and int(whole.min()) < 0:
        raise RequestError(f"input {name!r}: a length of {int(whole.min())}, expected 0 or more")
    # A sum of huge lengths could wrap around to the right total.
    if whole.size and int(whole.max()) > total:
        raise RequestError(
            f"input {name!r}: a length of {int(whole.max())}, but {counted(total, 'id')} came"
        )
    if int(whole.sum()) != total:
        raise RequestError(
            f"input {name!r}: the lengths sum to {int(whole.sum())}, but "
            f"{counted(total, 'id')} came"
        )
    return whole


def checked(name: str, array: Array, dtypes: tuple[np.dtype[np.generic], ...], said: str) -> Array:
    """The array; RequestError, naming the input and `said`, if missing or of another dtype."""
    if not isinstance(array, np.ndarray) or array.dtype not in dtypes:
        came = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise RequestError(f"input {name!r}: expected {said}, got {came}")
    return array
