"""Changed rows of a table, which stand in front of its own.

groups   one bit for some adjacent rows: whether one of them has been changed
bits     one a row: whether it has been changed
places   address of each changed row, in the order of ids; rows stay where they are stored
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi import lookup as abi
from kernels.abi.lookup import LINE_ROWS, WORD_ROWS
from kernels.errors import InputError
from kernels.mapped_file import MappedFile
from kernels.native_library import address_of

_LINE_BYTES = LINE_ROWS // 8
# Sizes of groups, and the least number of groups for each changed row, if the size allows.
_GROUP_ROWS, _LEAST_UNCHANGED = (64, 32, 16, 8), 8


class OverlayLayer(NamedTuple):
    """Changed rows of a table in one memory.

    Attributes:
        ids: int64 `[M]`, ascending.
        stored: uint8 `[M, row_bytes]`, contiguous.
        file: the file that `stored` maps; None for other memory.
    """

    ids: NDArray[np.int64]
    stored: Tensor
    file: MappedFile | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """State shared by the parts of one table.

    Attributes:
        rows: of the table with its changed rows.
        groups: uint64 words, a bit for each `group_rows` rows, 8 to 64.
        bits: uint64 words, the first at a multiple of 64 bytes.
        before: uint32, changed rows before each line of 512 rows.
        places: uint64 `[changed rows]`, addresses.
        layers: owners of these rows.
    """

    rows: int
    groups: NDArray[np.uint64]
    group_rows: int
    bits: NDArray[np.uint64]
    before: NDArray[np.uint32]
    places: NDArray[np.uint64]
    layers: tuple[OverlayLayer, ...]


class RowOverlay:
    """Changed rows of a table, or of the part of it from one row on; thread-safe.

    Attributes:
        fields: for compiled code; valid as long as the overlay.
        own_rows: rows that the table, or the part, has of its own; all behind them are changed.
    """

    def __init__(self, shared: _Shared, own_rows: int, first_row: int = 0) -> None:
        self._shared, self._first_row = shared, first_row
        self.own_rows = max(0, own_rows - first_row)
        self.fields = abi.RowOverlay(
            address_of(shared.groups),
            address_of(shared.bits),
            address_of(shared.before),
            address_of(shared.places),
            shared.group_rows.bit_length() - 1,
            first_row,
        )

    @classmethod
    def of(cls, rows: int, own_rows: int, layers: Sequence[OverlayLayer]) -> "RowOverlay":
        """Joins changed rows.

        Args:
            rows: of the table with its changed rows.
            own_rows: of the table without them.
            layers: later ones take precedence.

        Raises:
            InputError: ids do not ascend or are outside the table, their number is not that of the
                rows, or a row behind the table's own is missing.
        """
        for number, layer in enumerate(layers):
            _check(f"layer {number} of changed rows", layer, rows)
        bits = _words(rows)
        for layer in layers:
            np.bitwise_or.at(
                bits,
                layer.ids // WORD_ROWS,
                np.uint64(1) << (layer.ids % WORD_ROWS).view(np.uint64),
            )
        counts = np.bitwise_count(bits).reshape(-1, LINE_ROWS // WORD_ROWS).sum(1)
        before = np.zeros(len(counts), np.uint32)
        np.cumsum(counts[:-1], out=before[1:])
        changed = _united([layer.ids for layer in layers])
        _check_new_rows(changed, own_rows, rows)
        places = np.empty(len(changed), np.uint64)
        for layer in layers:
            step = layer.stored.stride(0)
            own = np.arange(len(layer.ids), dtype=np.uint64) * np.uint64(step)
            places[np.searchsorted(changed, layer.ids)] = own + np.uint64(layer.stored.data_ptr())
        group_rows = _group_rows(rows, len(changed))
        shared = _Shared(
            rows=rows,
            groups=_groups(bits, group_rows),
            group_rows=group_rows,
            bits=bits,
            before=before,
            places=places,
            layers=tuple(layers),
        )
        return cls(shared, own_rows)

    @property
    def rows(self) -> int:
        """Rows of the table, or of the part of it, with its changed rows."""
        return self._shared.rows - self._first_row

    @property
    def count(self) -> int:
        """Changed rows of the whole table."""
        return len(self._shared.places)

    @property
    def index_bytes(self) -> int:
        """Memory of the index, without the rows."""
        shared = self._shared
        parts = (shared.groups, shared.bits, shared.before, shared.places)
        return sum(part.nbytes for part in parts)

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files that changed rows are mapped from."""
        return tuple(layer.file for layer in self._shared.layers if layer.file is not None)

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """The changed rows, uint8 `[M, row_bytes]` of each layer."""
        return tuple(layer.stored for layer in self._shared.layers)

    def part(self, first_row: int) -> "RowOverlay":
        """The overlay of ids that count from a row of this one's."""
        own_rows = self._first_row + self.own_rows
        return RowOverlay(self._shared, own_rows, self._first_row + first_row)

    def patch(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrites uint8 `[N, row_bytes]` rows of valid int64 `[N]` ids by changed ones."""
        at = ids.numpy() + self._first_row
        bits, word, bit = self._shared.bits, at // WORD_ROWS, (at % WORD_ROWS).view(np.uint64)
        changed = np.flatnonzero((bits[word] >> bit) & np.uint64(1))
        if not len(changed):
            return
        places = self._shared.places[self._ranks(at[changed])]
        for layer in self._shared.layers:
            step, begin = layer.stored.stride(0), layer.stored.data_ptr()
            row = (places - np.uint64(begin)) // np.uint64(step)
            own = (places >= begin) & (row < len(layer.ids))
            target = torch.from_numpy(changed[own])
            rows[target] = layer.stored[torch.from_numpy(row[own].astype(np.int64))]

    def _ranks(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        shared, lines = self._shared, rows // LINE_ROWS
        words = shared.bits.reshape(-1, LINE_ROWS // WORD_ROWS)[lines]
        own = rows % LINE_ROWS // WORD_ROWS
        lower = (np.uint64(1) << (rows % WORD_ROWS).view(np.uint64)) - np.uint64(1)
        at = np.arange(words.shape[1])
        words = np.where(at < own[:, None], words, np.uint64(0))
        words[np.arange(len(rows)), own] = shared.bits[rows // WORD_ROWS] & lower
        ranks: NDArray[np.int64] = np.bitwise_count(words).sum(1, dtype=np.int64)
        return ranks + shared.before[lines]


def _check(what: str, layer: OverlayLayer, rows: int) -> None:
    ids, stored = layer.ids, layer.stored
    if ids.dtype != np.int64 or ids.ndim != 1 or not len(ids):
        raise InputError(f"{what}: expected ids int64 [M], got {ids.dtype} {list(ids.shape)}")
    if (ids[1:] <= ids[:-1]).any():
        at = int((ids[1:] <= ids[:-1]).argmax()) + 1
        raise InputError(f"{what}: expected ascending ids, got {ids[at]} after {ids[at - 1]}")
    if ids[0] < 0 or ids[-1] >= rows:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise InputError(f"{what}: expected ids of 0 to {rows - 1}, got {wrong}")
    if stored.dtype != torch.uint8 or stored.dim() != 2 or len(stored) != len(ids):
        raise InputError(
            f"{what}: expected rows uint8 [{len(ids)}, row_bytes], got {stored.dtype} "
            f"{list(stored.shape)}"
        )


def _united(ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    # A stable sort merges ascending runs; `np.unique` takes a hundred times as long.
    ordered = np.sort(np.concatenate(ids), kind="stable")
    once: NDArray[np.int64] = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
    return once


def _check_new_rows(changed: NDArray[np.int64], own_rows: int, rows: int) -> None:
    new = changed[np.searchsorted(changed, own_rows) :]
    missing = np.flatnonzero(new != np.arange(own_rows, own_rows + len(new)))
    if len(missing) or len(new) != rows - own_rows:
        first = own_rows + (int(missing[0]) if len(missing) else len(new))
        raise InputError(f"changed rows: row {first} is new, behind {own_rows}, and is not there")


def _words(rows: int) -> NDArray[np.uint64]:
    """Zeros for all lines, the first word at a multiple of 64 bytes."""
    lines = -(-rows // LINE_ROWS)
    memory = np.zeros((lines + 1) * _LINE_BYTES, np.uint8)
    first = -address_of(memory) % _LINE_BYTES
    return memory[first : first + lines * _LINE_BYTES].view(np.uint64)


def _group_rows(rows: int, changed: int) -> int:
    """Number of rows that share a bit, so that few of these bits are set."""
    fitting = (size for size in _GROUP_ROWS if changed * size * _LEAST_UNCHANGED <= rows)
    return next(fitting, min(_GROUP_ROWS))


def _groups(bits: NDArray[np.uint64], group_rows: int) -> NDArray[np.uint64]:
    changed = bits.view(f"<u{group_rows // 8}") != 0
    packed = np.packbits(changed, bitorder="little")
    whole = np.zeros(-(-len(packed) // 8), np.uint64)
    whole.view(np.uint8)[: len(packed)] = packed
    return whole
