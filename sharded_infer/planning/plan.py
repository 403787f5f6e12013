"""Plans: the shards of every table on a topology."""

import bisect
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass

from kernels.gpu.row_stride import device_stride
from kernels.row_format import RowFormat
from kernels.wording import counted
from sharded_infer.errors import PlanError
from sharded_infer.planning.topology import Topology

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A stored table, as the planner needs it."""

    name: str
    rows: int
    dim: int
    row_format: RowFormat

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row."""
        return self.row_format.row_bytes(self.dim)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the whole table."""
        return self.rows * self.row_bytes


@validated_dataclass(frozen=True, slots=True, config=_STRICT)
class Shard:
    """A rectangle of a table on the rank with this index; both ranges are half-open."""

    table: str
    rank: int
    first_row: int
    last_row: int
    first_column: int
    last_column: int

    @property
    def rows(self) -> int:
        """Rows of the rectangle."""
        return self.last_row - self.first_row

    @property
    def columns(self) -> int:
        """Columns of the rectangle."""
        return self.last_column - self.first_column


@validated_dataclass(frozen=True, slots=True, config=_STRICT)
class Plan:
    """The placement of every table.

    Attributes:
        shards: together they cover the tables that are not replicated exactly once.
        replicated: whole tables on every rank in use; any of them may look a bag up.
        unused: empty ranks, ascending; a host without other ranks runs no tower.
        key: hash of the planned tables, their use and the topology.
    """

    topology: Topology
    shards: tuple[Shard, ...]
    replicated: tuple[str, ...] = ()
    key: str = ""
    unused: tuple[int, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """The ranks in use."""
        return [rank for rank in range(len(self.topology.devices)) if rank not in self.unused]

    @property
    def has_gpus(self) -> bool:
        """True if a rank in use is a GPU; all ranks then use the device layout."""
        return self.topology.only(self.ranks).has_gpus

    def bytes_by_rank(self, tables: Mapping[str, StoredTable]) -> list[int]:
        """Bytes of tables that each rank holds.

        A column shard keeps each row's scale and bias; where a rank is a GPU, rows are padded.
        """
        everywhere = sum(
            tables[name].rows * self._row_bytes(tables[name], tables[name].dim)
            for name in self.replicated
        )
        held = [0] * len(self.topology.devices)
        for rank in self.ranks:
            held[rank] = everywhere
        for shard in self.shards:
            held[shard.rank] += shard.rows * self._row_bytes(tables[shard.table], shard.columns)
        return held

    def _row_bytes(self, table: StoredTable, columns: int) -> int:
        row_bytes = table.row_format.row_bytes(columns)
        return device_stride(row_bytes) if self.has_gpus else row_bytes


_ADAPTER = TypeAdapter(Plan)


def dump_plan(plan: Plan) -> bytes:
    """The plan as JSON for `load_plan`."""
    # Omitted when empty, for readers that do not know these fields.
    left_out: dict[str, Any] = {} if plan.unused else {"unused": True}
    if plan.topology.front is None:
        left_out["topology"] = {"front"}
    return _ADAPTER.dump_json(plan, indent=1, exclude=left_out or None)


def load_plan(text: bytes, where: str = "plan") -> Plan:
    """Parse a plan; PlanError naming `where` if it is not one."""
    try:
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PlanError(f"{where}: not a plan: {place}: {first['msg']}") from error


def check_plan(plan: Plan, tables: Mapping[str, StoredTable]) -> None:
    """Check that a plan covers every cell of every table exactly once, and fits.

    Raises PlanError with the table or rank, the expectation and the plan's value.
    """
    topology = plan.topology
    _check_unused(plan)
    shards: dict[str, list[Shard]] = {name: [] for name in tables}
    for name in plan.replicated:
        if shards.pop(name, None) is None:
            raise PlanError(f"table {name!r} is replicated twice, or is not one of the model's")
    for shard in plan.shards:
        _check_shard(shard, tables, topology)
        if shard.table not in shards:
            raise PlanError(f"table {shard.table!r} is replicated, yet it has a shard")
        shards[shard.table].append(shard)
    for name, of_table in shards.items():
        _check_coverage(tables[name], of_table)
    held = plan.bytes_by_rank(tables)
    for rank, (device, used) in enumerate(zip(topology.devices, held, strict=True)):
        if device.memory_bytes is not None and used > device.memory_bytes:
            raise PlanError(
                f"rank {rank}: its shards are {counted(used, 'byte')}, its memory is "
                f"{device.memory_bytes}"
            )


def _check_unused(plan: Plan) -> None:
    count = len(plan.topology.devices)
    if sorted(set(plan.unused) & set(range(count))) != list(plan.unused) or not plan.ranks:
        raise PlanError(
            f"unused: expected some of the ranks 0 to {count - 1}, ascending, got "
            f"{list(plan.unused)}"
        )
    for shard in plan.shards:
        if shard.rank in plan.unused:
            raise PlanError(f"table {shard.table!r}: rank {shard.rank} is unused, yet has a shard")


def _check_coverage(table: StoredTable, shards: list[Shard]) -> None:
    covered = sum(shard.rows * shard.columns for shard in shards)
    if covered != table.rows * table.dim or _overlap(shards):
        raise PlanError(
            f"table {table.name!r}: its shards must cover each of {table.rows} x {table.dim} cells "
            f"exactly once; {covered} are covered by "
            f"{counted(len(shards), 'shard')} with overlap {_overlap(shards)}"
        )


def _check_shard(shard: Shard, tables: Mapping[str, StoredTable], topology: Topology) -> None:
    table = tables.get(shard.table)
    if table is None:
        raise PlanError(f"a shard names table {shard.table!r}, which the model does not have")
    if not 0 <= shard.rank < len(topology.devices):
        raise PlanError(
            f"table {shard.table!r}: rank {shard.rank} is not in topology {topology.name!r}"
        )
    if not (
        0 <= shard.first_row < shard.last_row <= table.rows
        and 0 <= shard.first_column < shard.last_column <= table.dim
    ):
        raise PlanError(
            f"table {shard.table!r}: shard rows [{shard.first_row}, {shard.last_row}) and columns "
            f"[{shard.first_column}, {shard.last_column}) leave its {table.rows} x {table.dim} "
            "cells"
        )


def _overlap(shards: list[Shard]) -> bool:
    # A sweep over rows: two open rectangles must not share a column. Open ones lie side by side, so
    # a new one can only overlap its neighbours.
    closing: list[tuple[int, int]] = []  # a heap of last rows and first columns
    columns: list[tuple[int, int]] = []  # first and last, ascending
    for shard in sorted(shards, key=lambda shard: shard.first_row):
        while closing and closing[0][0] <= shard.first_row:
            _, first = heapq.heappop(closing)
            del columns[bisect.bisect_left(columns, (first, 0))]
        own = (shard.first_column, shard.last_column)
        place = bisect.bisect_left(columns, own)
        if place and columns[place - 1][1] > own[0]:
            return True
        if place < len(columns) and columns[place][0] < own[1]:
            return True
        columns.insert(place, own)
        heapq.heappush(closing, (shard.last_row, shard.first_column))
    return False
