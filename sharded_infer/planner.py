"""The planner: tables and a topology in, a plan out; pure and deterministic."""

from collections.abc import Sequence

from sharded_infer.errors import PlanError
from sharded_infer.plan import Plan, Shard, StoredTable
from sharded_infer.topology import Topology


def make_plan(tables: Sequence[StoredTable], topology: Topology) -> Plan:
    """Places tables on ranks so that the fullest rank holds as little as possible.

    Longest processing time first (Graham 1969): the largest table goes to the emptiest rank, then
    the next. A table that fits on no rank whole is split by rows over the ranks with room.

    Args:
        tables: the tables as stored.
        topology: the ranks and their memory.

    Raises:
        PlanError: the tables do not fit; says by how much.
    """
    held = [0] * len(topology.devices)
    shards: list[Shard] = []
    for table in sorted(tables, key=lambda t: (-t.stored_bytes, t.name)):
        room = [
            table.stored_bytes if device.memory_bytes is None else device.memory_bytes - used
            for device, used in zip(topology.devices, held, strict=True)
        ]
        fitting = [rank for rank, free in enumerate(room) if free >= table.stored_bytes]
        if fitting:
            pieces = [(min(fitting, key=lambda rank: held[rank]), table.rows)]
        else:
            pieces = _split_rows(table, room, topology)
        first_row = 0
        for rank, rows in pieces:
            shards.append(Shard(table.name, rank, first_row, first_row + rows, 0, table.dim))
            held[rank] += rows * table.row_bytes
            first_row += rows
    return Plan(topology.name, tuple(shards))


def _split_rows(
    table: StoredTable, room: Sequence[int], topology: Topology
) -> list[tuple[int, int]]:
    pieces, left = [], table.rows
    for rank in sorted(range(len(room)), key=lambda r: (-room[r], r)):
        rows = min(left, max(0, room[rank]) // table.row_bytes)
        if rows:
            pieces.append((rank, rows))
            left -= rows
    if left:
        raise PlanError(
            f"table {table.name!r}: {table.stored_bytes} bytes do not fit on topology "
            f"{topology.name!r}: {left * table.row_bytes} bytes too many"
        )
    return pieces
