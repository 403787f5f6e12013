"""The bytes to copy between two plans."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sharded_infer.planning.plan import Plan, Shard, StoredTable


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes of a table that a rank has to receive."""

    table: str
    rank: int
    bytes: int


def moves_between(
    old: Plan,
    new: Plan,
    tables: Mapping[str, StoredTable],
    old_rank: Mapping[int, int] | None = None,
) -> list[Move]:
    """Moves for each table and rank of the new plan, largest first.

    `old_rank` is the old plan's rank for each new one; None: the same numbers.
    """
    ranks = len(new.topology.devices)
    known = old_rank if old_rank is not None else {rank: rank for rank in range(ranks)}
    held = _held(old, tables)
    wanted = _held(new, tables)
    moves = []
    for (table, rank), shards in wanted.items():
        before = held.get((table, known[rank]), []) if rank in known else []
        missing = sum(_missing_bytes(shard, before, tables[table]) for shard in shards)
        if missing:
            moves.append(Move(table, rank, missing))
    return sorted(moves, key=lambda move: (-move.bytes, move.table, move.rank))


def _held(plan: Plan, tables: Mapping[str, StoredTable]) -> dict[tuple[str, int], list[Shard]]:
    held: dict[tuple[str, int], list[Shard]] = defaultdict(list)
    for shard in plan.shards:
        held[shard.table, shard.rank].append(shard)
    for name in plan.replicated:
        if name in tables:
            whole = tables[name]
            for rank in plan.ranks:
                held[name, rank].append(Shard(name, rank, 0, whole.rows, 0, whole.dim))
    return held


def _missing_bytes(shard: Shard, before: Iterable[Shard], table: StoredTable) -> int:
    cells = shard.rows * shard.columns - sum(_common_cells(shard, other) for other in before)
    stored = shard.rows * table.row_format.row_bytes(shard.columns)
    return -(-stored * cells // (shard.rows * shard.columns))


def _common_cells(one: Shard, other: Shard) -> int:
    rows = min(one.last_row, other.last_row) - max(one.first_row, other.first_row)
    columns = min(one.last_column, other.last_column) - max(one.first_column, other.first_column)
    return max(0, rows) * max(0, columns)
