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
from sharded_infer.lookups.placement import plan_shards
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


# One of a rank's blocks: its row format, and whether wide accesses read it.
_Kind = tuple[RowFormat, bool]


def rank_bytes(plan: Plan, tables: Mapping[str, StoredTable]) -> list[int]:
    """Bytes of each rank's memory, including padding of rows and blocks."""
    return [
        sum(_begins(kind, shards)[-1] for kind, shards in blocks.items())
        for blocks in _blocks(plan, tables)
    ]


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
    placed: list[PlacedShard] = []
    for rank, (blocks, device) in enumerate(zip(_blocks(plan, tables), devices, strict=True)):
        for kind, shards in blocks.items():
            *begins, size = _begins(kind, shards)
            try:
                memory = (
                    runtime.pinned_for_good(size) if device is None else runtime.empty(device, size)
                )
            except CapacityError as error:
                needed = rank_bytes(plan, tables)[rank]
                raise CapacityError(
                    f"rank {rank} of {plan.topology.name!r}: its tables need "
                    f"{counted(needed, 'byte')}: "
                    f"{error}"
                ) from error
            placed += [
                PlacedShard(
                    table=tables[shard.table],
                    rank=rank,
                    memory=memory,
                    byte_offset=begin,
                    row_stride=stride,
                    first_row=shard.first_row,
                    rows=shard.rows,
                    first_column=shard.first_column,
                    columns=shard.columns,
                    replicated=replicated,
                )
                for begin, (shard, stride, replicated) in zip(begins, shards, strict=True)
            ]
    return placed


def _blocks(
    plan: Plan, tables: Mapping[str, StoredTable]
) -> list[dict[_Kind, list[tuple[Shard, int, bool]]]]:
    """Shards of each block of each rank, with their row strides and whether they are replicas."""
    ranks: list[dict[_Kind, list[tuple[Shard, int, bool]]]]
    ranks = [defaultdict(list) for _ in plan.topology.devices]
    for shard, turn in plan_shards(plan, tables):
        row_format = tables[shard.table].row_format
        stride = device_stride(row_format.row_bytes(shard.columns))
        kind = row_format, stride % WIDE_BYTES == 0
        ranks[shard.rank][kind].append((shard, stride, turn is not None))
    return ranks


def _begins(kind: _Kind, shards: Sequence[tuple[Shard, int, bool]]) -> list[int]:
    """First byte of each shard in a block, then the block's size."""
    header, end, begins = kind[0].header_bytes, 0, []
    for shard, stride, _ in shards:
        # Payloads are aligned for the widest access.
        begins.append(end + (-(end + header)) % WIDE_BYTES)
        end = begins[-1] + shard.rows * stride
    # The last access may read beyond the last payload.
    return [*begins, end + header + WIDE_BYTES]


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
