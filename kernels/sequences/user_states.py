"""States of users in memory that processes share; see `native/abi/user_states.h`.

A history's state is kept by blocks of positions, which equal beginnings of histories share. Other
states are kept whole.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi import user_states as abi
from kernels.errors import InputError
from kernels.native_library import address_of, array_type, read_address

BLOCK_POSITIONS: Final = abi.BLOCK_POSITIONS
NAME_BYTES: Final = abi.NAME_WORDS * 8
# Most states are smaller: one call reads them.
_ROOM: Final = 1 << 16


_KNOWN_BLOCKS: Final = np.dtype(abi.KnownBlocks)


class HistoryColumn(NamedTuple):
    """An input of each position of some histories.

    Attributes:
        values: int64 and contiguous, of one history after another.
        lengths: int64 `[R]`, values of each.
        width: values of a position.
    """

    values: NDArray[np.int64]
    lengths: NDArray[np.int64]
    width: int


class Prefixes(NamedTuple):
    """The beginnings of some histories whose states are kept.

    Attributes:
        blocks: `KnownBlocks` `[R]`, for the passes over the positions behind them.
        behind: int64 `[2, R]`, the first position behind each, and how many there are.
        hits: histories with known positions.
        known, computed: positions.
        held: objects whose addresses `blocks` has.
    """

    blocks: NDArray[np.void]
    behind: NDArray[np.int64]
    hits: int
    known: int
    computed: int
    held: tuple[object, ...]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Known positions of each, multiples of `BLOCK_POSITIONS`, fewer than its history has."""
        known: NDArray[np.int64] = self.blocks["count"] * BLOCK_POSITIONS
        return known

    def of(self, history: int) -> "Prefixes":
        """The prefix of one history, for passes; sums stay those of all histories."""
        return self._replace(blocks=self.blocks[history : history + 1])


class UserStates:
    """A table of bounded size for this process and those forked later; thread-safe.

    Args:
        most_bytes: of the table; about 3% of them are its own.
        is_bfloat: True if blocks' states are rounded to bf16.
        is_resident: True if all pages are mapped at once, in about 0.5 s a GiB; else the first
            writes to them are slower.

    Raises:
        InputError: there is no room for one state.
    """

    def __init__(
        self, most_bytes: int, *, is_bfloat: bool = False, is_resident: bool = False
    ) -> None:
        self.most_bytes, self._is_bfloat = most_bytes, is_bfloat
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | (mmap.MAP_POPULATE if is_resident else 0)
        self._memory = mmap.mmap(-1, max(most_bytes, 1), flags)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # Nobody else can compute a name, so no request can have that of another history.
        key = (ctypes.c_uint64 * 2).from_buffer_copy(os.urandom(16))
        if abi.states_create(self._address, most_bytes, key):
            raise InputError(f"user states: expected room for one state, got {most_bytes} bytes")

    def prefixes(
        self,
        owner: abi.StateOwner,
        columns: Sequence[HistoryColumn],
        firsts: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> Prefixes:
        """The longest kept beginnings of some histories.

        Args:
            owner: its name says on what else the state depends.
            columns: of the histories.
            firsts: int64 `[R]`, the first position of each that is used.
            positions: int64 `[R]`, used ones.
        """
        fields: list[int] = []
        for values, lengths, width in columns:
            fields += (read_address(values), read_address(lengths), width)
        read = array_type(ctypes.c_int64, len(fields))(*fields)
        histories = len(positions)
        whole = int(positions[0] if histories == 1 else positions.sum()) // BLOCK_POSITIONS
        names = np.empty(max(1, whole) * abi.NAME_WORDS, np.uint64)
        blocks, behind = np.empty(histories, _KNOWN_BLOCKS), np.empty((2, histories), np.int64)
        search = abi.PrefixSearch(
            self._address,
            ctypes.addressof(owner),
            ctypes.addressof(read),
            *(len(columns), read_address(firsts), read_address(positions), histories),
            *(address_of(names), address_of(blocks), address_of(behind), self._is_bfloat),
        )
        abi.states_find(search)
        held = names, owner, self
        return Prefixes(blocks, behind, search.hits, search.known, search.computed, held)

    def read(self, name: bytes) -> Tensor | None:
        """A whole state, uint8 `[N]`; None if it is not kept. `name` has `NAME_BYTES`."""
        room = _ROOM
        while True:
            state = torch.empty(room, dtype=torch.uint8)
            size = abi.states_read(self._address, name, state.data_ptr(), room)
            if size <= room:
                return state[:size] if size else None
            room = size

    def write(
        self,
        owner: abi.StateOwner,
        name: bytes,
        state: bytes,
        seconds: float,
        *,
        is_always: bool = False,
    ) -> None:
        """Keeps a whole state, which took `seconds`.

        Not if a shard of the table is smaller, nor, without `is_always`, if memory is short and the
        state comes for the first time.
        """
        abi.states_write(self._address, owner, name, state, len(state), seconds, is_always)

    def counts(self, owner: abi.StateOwner) -> tuple[int, int]:
        """States of an owner and their bytes, of all processes."""
        counts = abi.StateCounts()
        abi.states_count(self._address, owner, counts)
        return counts.states, counts.bytes
