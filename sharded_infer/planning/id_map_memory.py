"""Memory of id maps: whoever maps a table's raw ids holds its id map.

A table whose shards all have every row is mapped by their hosts, each of which opens the id map
once. Of one whose rows stand in parts by the hashes of their ids, each host opens its own part.
Another one is mapped by the front, which needs the row to know whom to ask, and so is one of which
the front has rows.
"""

from collections.abc import Collection, Mapping

from sharded_infer.planning.plan import Plan, Shard

ID_ROW_BYTES = 16
FIXED_BYTES = 16 * 2**10  # of each part


def map_bytes_of(rows: int) -> int:
    """Bytes of the id map of a table if every row has one id."""
    return rows * ID_ROW_BYTES + FIXED_BYTES


def map_bytes_by_rank(
    plan: Plan,
    map_bytes: Mapping[str, int],
    rows: Mapping[str, int],
    in_parts: Collection[str] = (),
) -> list[int]:
    """Bytes of id maps on each rank: of each host that opens one, the first with the table.

    Args:
        map_bytes: by table; of a topology with a front.
        rows: of each table.
        in_parts: tables whose rows stand in parts where a plan cuts them.
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
