"""States of a version's users, kept for their next requests in memory that processes share."""

import math
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi.user_states import StateOwner
from kernels.sequences.user_states import HistoryColumn, Prefixes, UserStates

State = tuple[Tensor, ...]

# Number codes of dtypes in a stored state.
_DTYPES: Final = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
# Alignment of a tensor's numbers, as of torch's own, on which bits may depend.
_ALIGNED: Final = 64


class UserCache:
    """States of one loaded version; thread-safe.

    Args:
        states: of all versions.
        version: 16 bytes that depend on all that a state does besides a user's inputs.

    Attributes:
        hits, misses: counts of states that were and were not kept, wholly or of a beginning.
    """

    def __init__(self, states: UserStates, version: bytes) -> None:
        self.hits = self.misses = 0
        self._states, self._version = states, version
        self._owner = StateOwner.from_buffer_copy(version + bytes(8))
        self._reported = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of its states, of all processes."""
        return self._states.counts(self._owner)[1]

    def __len__(self) -> int:
        """The number of states."""
        return self._states.counts(self._owner)[0]

    def newly_evicted(self) -> int:
        """States evicted for others since the last call, for one caller."""
        evicted = int(self._owner.evictions)
        since, self._reported = evicted - self._reported, evicted
        return since

    def prefixes(
        self,
        columns: Sequence[HistoryColumn],
        firsts: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> Prefixes:
        """The longest kept beginnings of some histories, as `UserStates.prefixes`."""
        prefixes = self._states.prefixes(self._owner, columns, firsts, positions)
        self.hits += prefixes.hits
        self.misses += len(positions) - prefixes.hits
        return prefixes

    def take(self, keys: Sequence[bytes]) -> list[State | None]:
        """Whole states of some users, by 16 bytes of each; None where not kept."""
        found = [self._states.read(self._named(key)) for key in keys]
        missing = found.count(None)
        self.misses += missing
        self.hits += len(found) - missing
        return [None if state is None else _unpacked(state) for state in found]

    def keep(self, key: bytes, state: State, seconds: float, *, is_always: bool = False) -> None:
        """Keeps a user's whole state, as `UserStates.write`."""
        name = self._named(key)
        self._states.write(self._owner, name, _packed(state), seconds, is_always=is_always)

    def _named(self, key: bytes) -> bytes:
        return bytes(np.frombuffer(key, np.uint64) ^ np.frombuffer(self._version, np.uint64))


def _packed(state: State) -> bytes:
    # Without gaps; the strides stay, on which the bits of products depend.
    dense = [tensor.clone() for tensor in state]
    parts = [struct.pack("<q", len(dense))]
    for tensor in dense:
        sizes = _DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *tensor.stride()
        parts.append(struct.pack(f"<{len(sizes)}q", *sizes))
    begin = sum(map(len, parts))
    for tensor in dense:
        numbers = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        parts += [bytes(-begin % _ALIGNED), numbers.numpy().tobytes()]
        begin += len(parts[-2]) + len(parts[-1])
    return b"".join(parts)


def _unpacked(state: Tensor) -> State:
    words = state[: len(state) // 8 * 8].view(torch.int64)
    layouts, at = [], 1
    for _ in range(int(words[0])):
        dtype, dims = words[at : at + 2].tolist()
        shape, strides = words[at + 2 : at + 2 + 2 * dims].view(2, dims).tolist()
        layouts.append((_DTYPES[dtype], shape, strides))
        at += 2 + 2 * dims
    tensors, begin = [], at * 8
    for dtype, shape, strides in layouts:
        begin += -begin % _ALIGNED
        end = begin + dtype.itemsize * math.prod(shape)
        tensors.append(
            state[begin:end].view(dtype).as_strided(shape, strides, begin // dtype.itemsize)
        )
        begin = end
    return tuple(tensors)
