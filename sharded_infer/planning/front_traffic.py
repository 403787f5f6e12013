"""Bytes between a front and the hosts that it asks, and the front's seconds for them.

    sent     = ids * width + bags        (a bag's length takes a byte)
    received = bags * columns * 4        (fp32 sums; stored rows come where they have fewer bytes)
    front    = hosts * call_seconds + sent / send_bandwidth + received / receive_bandwidth

ids and bags are those of a shard for a batch, where each id of a sequence is a bag. width is 1, 2,
4 or 8 bytes, as the table's rows need; 8 for raw ids: those of a table with an id map, in shards
with all its rows or in parts by the hashes of its ids. A row shard returns partial sums of whole
vectors, a column shard receives all ids.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sharded_infer.planning.cost_model import OUTPUT_BYTES, CostModel
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology import FrontCosts

_ID_WIDTHS = (1, 2, 4, 8)
_LENGTH_BYTES = 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a batch, without headers: ids and bag lengths sent, at most `received` sums."""

    sent: float = 0.0
    received: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.sent + other.sent, self.received + other.received)

    @property
    def total(self) -> float:
        """Bytes both ways."""
        return self.sent + self.received

    def seconds(self, front: FrontCosts) -> float:
        """Seconds of the front, without the calls."""
        return self.sent / front.send_bandwidth + self.received / front.receive_bandwidth


def table_traffic(use: TableUse, batch: int) -> Traffic:
    """Traffic of a whole table on another host."""
    return _traffic(use, batch, 1.0, use.table.dim, raw=use.map_bytes > 0)


def traffic_by_host(plan: Plan, load: CostModel) -> dict[int, Traffic]:
    """Traffic of each host with shards but the front's own, ascending.

    Without a front in the topology, all hosts count, as if asked from another machine. Replicated
    tables are not counted.
    """
    topology = plan.topology
    found: dict[int, Traffic] = {}
    for shard in plan.shards:
        device = topology.devices[shard.rank]
        if topology.front is None or topology.is_asked(device):
            found[device.host] = found.get(device.host, Traffic()) + _of_shard(shard, load)
    return dict(sorted(found.items()))


def front_seconds(plan: Plan, load: CostModel) -> float:
    """The front's seconds to ask hosts and to read their responses, for a batch."""
    front = plan.topology.front
    if front is None:
        return 0.0
    by_host = traffic_by_host(plan, load)
    return len(by_host) * front.call_seconds + total(by_host.values()).seconds(front)


def total(parts: Iterable[Traffic]) -> Traffic:
    """The sum of several traffics."""
    return sum(parts, Traffic())


def _of_shard(shard: Shard, load: CostModel) -> Traffic:
    share = load.access_share(shard.table, shard.first_row, shard.last_row)
    use = load.uses[shard.table]
    raw = use.map_bytes > 0 and (use.in_parts or shard.rows == use.table.rows)
    return _traffic(use, load.batch, share, shard.columns, raw=raw)


def _traffic(use: TableUse, batch: int, share: float, columns: int, *, raw: bool) -> Traffic:
    bags = batch * use.vectors
    numbers = 2**64 if raw else use.table.rows
    width = next(width for width in _ID_WIDTHS if numbers <= 1 << 8 * width)
    ids = batch * use.pooling_factor * share
    return Traffic(ids * width + bags * _LENGTH_BYTES, bags * columns * OUTPUT_BYTES)
