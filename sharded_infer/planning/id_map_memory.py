"""Memory of id maps: whoever maps a table's raw ids holds its id map.

A table whose shards all have every row is mapped by their hosts, each of which opens the id map
once. Another one is mapped by the front, which needs the row to know whom to ask.
"""

from collections.abc import Mapping

from sharded_infer.planning.plan import Plan, Shard

_ID_BYTES = 16
_FIXED_BYTES = 16 * 2**10


def map_bytes_of(rows: int) -> int:
    """Bytes of the id map of a table if every row has one id."""
    return rows * _ID_BYTES + _FIXED_BYTES


def map_bytes_by_rank(
    plan: Plan, map_bytes: Mapping[str, int], rows: Mapping[str, int]
) -> list[int]:
    """Bytes of id maps on each rank: of each host that opens one, the first with the table.

    Args:
        map_bytes: by table; of a topology with a front.
        rows: of each table.
    """
    devices, front = plan.topology.devices, plan.topology.front
    held = [0] * len(devices)
    own = [] if front is None else [r for r, one in enumerate(devices) if one.host == front.host]
    shards: dict[str, list[Shard]] = {name: [] for name, size in map_bytes.items() if size}
    for shard in plan.shards:
        if shard.table in shards:
            shards[shard.table].append(shard)
    for name, of_table in shards.items():
        ranks = own[:1]
        if all(shard.rows == rows[name] for shard in of_table):
            by_host = {devices[one.rank].host: one.rank for one in reversed(of_table)}
            ranks = list(by_host.values())
        for rank in ranks:
            held[rank] += map_bytes[name]
    return held
