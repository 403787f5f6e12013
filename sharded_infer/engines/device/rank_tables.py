"""A plan's tables in the memory of its ranks.

Each rank has a block per row format and access width (`kernels.gpu.row_stride`), read by one
launch. Ranks without a GPU use the host's pinned memory, read over the interconnect.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gpu.row_stride import WIDE_BYTES, device_stride
from kernels.row_format import RowFormat
from kernels.stored_rows import select_columns
from kernels.wording import counted
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.engines.device.runtime.runtime import Runtime
from sharded_infer.errors import CapacityError
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.progress import Progress, no_progress

_COPIED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class PlacedShard:
    """A rectangle of a table in a rank's memory.

    Attributes:
        memory: uint8 `[bytes]`, the rank's block for the table's row format and access width.
        byte_offset: start of the first row in `memory`, including the row's header.
        row_stride: bytes from one row to the next.
    """

    table: StoredTable
    rank: int
    memory: Tensor
    byte_offset: int
    row_stride: int
    first_row: int
    rows: int
    first_column: int
    columns: int
    replicated: bool = False

    @property
    def holds_all_rows(self) -> bool:
        """True if the shard has every row of the table."""
        return self.rows == self.table.rows


@dataclass(frozen=True, slots=True)
class _Place:
    shard: Shard
    byte_offset: int
    row_stride: int
    replicated: bool


# Identifies one of a rank's blocks: its row format, and whether wide accesses read it.
_Kind = tuple[RowFormat, bool]


def rank_bytes(plan: Plan, tables: Mapping[str, StoredTable]) -> list[int]:
    """Bytes of each rank's memory, including padding of rows and blocks."""
    return [sum(size for _, size in of_rank.values()) for of_rank in _lay_out(plan, tables)]


def place_ranks(
    plan: Plan,
    tables: Mapping[str, StoredTable],
    pieces: Mapping[str, Sequence[TablePiece]],
    devices: Sequence[torch.device | None],
    runtime: Runtime,
    progress: Progress = no_progress,
) -> list[PlacedShard]:
    """Copies every shard of a checked plan to its rank; returns the shards, by rank.

    Args:
        devices: device of each rank; None is the host's pinned memory.
        progress: called with the number of bytes copied.

    Raises:
        CapacityError: a device has too little memory; names the rank, the bytes that its tables
            need and the bytes free.
    """
    # All memory first, so that a plan that does not fit fails before anything is copied.
    placed = allocate_ranks(plan, tables, devices, runtime)
    done, total = 0, sum(shard.rows * shard.row_stride for shard in placed)
    for shard in placed:
        _fill(shard, pieces[shard.table.name])
        done += shard.rows * shard.row_stride
        progress("copying tables to devices", done, total)
    # Streams that read the rows do not wait for the streams that copied them.
    for shard in placed:
        if shard.memory.is_cuda:
            torch.cuda.synchronize(shard.memory.device)
    return placed


def allocate_ranks(
    plan: Plan,
    tables: Mapping[str, StoredTable],
    devices: Sequence[torch.device | None],
    runtime: Runtime,
) -> list[PlacedShard]:
    """Allocates every rank's memory, of zeros; returns the shards, by rank.

    Arguments and errors as of `place_ranks`.
    """
    layouts = _lay_out(plan, tables)
    placed: list[PlacedShard] = []
    for rank, (layout, device) in enumerate(zip(layouts, devices, strict=True)):
        for places, size in layout.values():
            try:
                memory = (
                    runtime.pinned_for_good(size) if device is None else runtime.empty(device, size)
                )
            except CapacityError as error:
                needed = sum(bytes_ for _, bytes_ in layout.values())
                raise CapacityError(
                    f"rank {rank} of {plan.topology.name!r}: its tables need "
                    f"{counted(needed, 'byte')}: "
                    f"{error}"
                ) from error
            placed += [_shard(place, tables[place.shard.table], rank, memory) for place in places]
    return placed


def _lay_out(
    plan: Plan, tables: Mapping[str, StoredTable]
) -> list[dict[_Kind, tuple[list[_Place], int]]]:
    """Positions of shards in each block of each rank, and the bytes of the block."""
    by_rank: list[dict[_Kind, list[tuple[Shard, int, bool]]]] = [
        defaultdict(list) for _ in plan.topology.devices
    ]

    def put(shard: Shard, *, replicated: bool) -> None:
        row_format = tables[shard.table].row_format
        stride = device_stride(row_format.row_bytes(shard.columns))
        kind = row_format, stride % WIDE_BYTES == 0
        by_rank[shard.rank][kind].append((shard, stride, replicated))

    for shard in plan.shards:
        put(shard, replicated=False)
    for name in plan.replicated:
        table = tables[name]
        for rank in plan.ranks:
            put(Shard(name, rank, 0, table.rows, 0, table.dim), replicated=True)
    return [{kind: _places(kind[0], shards) for kind, shards in kinds.items()} for kinds in by_rank]


def _places(
    row_format: RowFormat, shards: Sequence[tuple[Shard, int, bool]]
) -> tuple[list[_Place], int]:
    header, end, places = row_format.header_bytes, 0, []
    for shard, stride, replicated in shards:
        # Payloads are aligned for the widest access.
        begin = end + (-(end + header)) % WIDE_BYTES
        places.append(_Place(shard, begin, stride, replicated))
        end = begin + shard.rows * stride
    # The last access may read beyond the last payload.
    return places, end + header + WIDE_BYTES


def _shard(place: _Place, table: StoredTable, rank: int, memory: Tensor) -> PlacedShard:
    shard = place.shard
    return PlacedShard(
        table=table,
        rank=rank,
        memory=memory,
        byte_offset=place.byte_offset,
        row_stride=place.row_stride,
        first_row=shard.first_row,
        rows=shard.rows,
        first_column=shard.first_column,
        columns=shard.columns,
        replicated=place.replicated,
    )


def _fill(shard: PlacedShard, pieces: Sequence[TablePiece]) -> None:
    table = shard.table
    width = table.row_format.row_bytes(shard.columns)
    end = shard.byte_offset + shard.rows * shard.row_stride
    lines = shard.memory[shard.byte_offset : end].view(shard.rows, shard.row_stride)[:, :width]
    # A strided copy needs a temporary of the same size on the device, so it is done in parts.
    step = max(1, _COPIED_BYTES // table.row_bytes)
    for piece in pieces:
        first = max(shard.first_row, piece.first_row)
        last = min(shard.first_row + shard.rows, piece.first_row + piece.rows)
        for row in range(first, last, step):
            stop = min(row + step, last)
            stored = piece.read(row, stop, table.row_bytes)
            if shard.columns != table.dim:
                stored = select_columns(
                    table.row_format,
                    stored,
                    shard.first_column,
                    shard.first_column + shard.columns,
                )
            lines[row - shard.first_row : stop - shard.first_row].copy_(stored)
