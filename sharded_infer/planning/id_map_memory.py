"""Memory of id maps: each mapper of a table's raw ids holds its id map.

If all shards of a table have every row, their hosts map its ids, and each opens the id map once. If
its rows are partitioned by the hashes of ids, each host opens its own part. Otherwise, and where it
has rows itself, the front maps, because it needs the row to know which host to ask.
"""

from collections.abc import Collection, Mapping

from sharded_infer.planning.plan import Plan, Shard

ID_ROW_BYTES = 16
FIXED_BYTES = 16 * 2**10  # of each part


def map_bytes_of(rows: int) -> int:
    """Bytes of a table's id map if every row has one id."""
    return rows * ID_ROW_BYTES + FIXED_BYTES


def map_bytes_by_rank(
    plan: Plan,
    map_bytes: Mapping[str, int],
    rows: Mapping[str, int],
    in_parts: Collection[str] = (),
) -> list[int]:
    """Bytes of id maps on each rank: of each host that opens one, the first with the table.

    `map_bytes`, by table, are of a topology with a front; plans that cut `in_parts` tables
    partition their rows.
    """
    devices, front = plan.topology.devices, plan.topology.front
    held = [0] * len(devices)
    own = [] if front is None else [r for r, one in enumerate(devices) if one.host == front.host]
    shards: dict[str, list[Shard]] = {name: [] for name, size in map_bytes.items() if size}
    for shard in plan.shards:
        if shard.table in shards:
            shards[shard.table].append(shard)
    for name, of_table in shards.items():
        by_host: dict[int, list[Shard]] = {}
        for shard in of_table:
            by_host.setdefault(devices[shard.rank].host, []).append(shard)
        is_whole = all(shard.rows == rows[name] for shard in of_table)
        if not is_whole and (name not in in_parts or any(shard.rank in own for shard in of_table)):
            for rank in own[:1]:
                held[rank] += map_bytes[name]
        if is_whole or name in in_parts:
            for host, of_host in by_host.items():
                if is_whole or front is None or host != front.host:
                    ranges = {(shard.first_row, shard.rows) for shard in of_host}
                    held[of_host[0].rank] += sum(map_bytes_of(count) for _, count in ranges)
    return held
