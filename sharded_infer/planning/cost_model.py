"""The cost model: the seconds of a device's time that a shard takes for a batch.

    read      = ids * (row_bytes + granule - 1) * ((1 - hit) / memory rate + hit / cache rate)
    write     = outputs * 4 bytes / memory rate
    send      = outputs * 4 bytes / link to the tower   (a replica has its own tower: none)
    receive   = ids * 8 bytes / link to the host
    map       = ids * one cache line / memory rate  (raw ids, where a front asks hosts)
    shard     = read + write + send + receive + map
    device    = launch_seconds + sum of its shards

ids are batch * pooling factor, over the table's features; outputs are batch * vectors * columns: a
vector for each pooled feature, and one for each id of an unpooled sequence. A row at a random
offset touches row_bytes + granule - 1 bytes of granules on average. A column shard rereads every
row's header and receives all ids; a row shard receives its share of the ids but writes and sends
whole vectors (partial sums); each of n replicas serves 1/n of the batches. `hit` is the share of
accesses to the rows that fit the cache, which tables share by the bytes they read.

If one front has the tower, links to the tower are those within a host, and launch_seconds of a rank
of another host include the round trip. The front's own costs are in `front_traffic`.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.specs.feature_statistics import share_of_hottest

ID_BYTES = 8
OUTPUT_BYTES = 4
_LINE_BYTES = 64  # of an id map, for most ids
DEFAULT_BATCH = 1024


@dataclass(frozen=True, slots=True)
class CostRates:
    """Seconds for each unit of one table's work on one device; a shard's cost is linear in them.

    Attributes:
        read_byte: cache hits included.
        send_byte, receive_byte: of output to the tower, and of ids.
        granule: minimum bytes moved by an access.
        ids, vectors: looked up and returned for a batch.
    """

    read_byte: float
    write_byte: float
    send_byte: float
    receive_byte: float
    map_id: float
    granule: int
    ids: float
    vectors: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of some tables on the devices of a topology, for `batch` samples.

    A plan leaves the `unused` ranks out; a host without other ranks runs no tower.
    """

    uses: Mapping[str, TableUse]
    topology: Topology
    batch: int = DEFAULT_BATCH
    unused: tuple[int, ...] = ()
    _rates: dict[tuple[str, Device], CostRates] = field(default_factory=dict, repr=False)
    _traffic: dict[Device, float] = field(default_factory=dict, repr=False)

    def under(self, plan: Plan) -> "CostModel":
        """The cost model with the ranks that a plan uses."""
        if plan.unused == self.unused:
            return self
        rates = {} if self.topology.front is None else self._rates
        return replace(self, unused=plan.unused, _rates=rates)

    def only(self, ranks: Sequence[int]) -> "CostModel":
        """The cost model of some ranks, ascending, as if there were no others."""
        return CostModel(self.uses, self.topology.only(ranks), self.batch)

    def part(self, tables: Sequence[str], ranks: Sequence[int]) -> "CostModel":
        """The cost model of some tables on some ranks, ascending; caches are shared with all."""
        uses = {name: self.uses[name] for name in tables}
        part = CostModel(uses, self.topology.only(ranks), self.batch)
        for device in set(part.topology.devices):
            part._rates.update({(name, device): self.rates(name, device) for name in tables})
        return part

    def map_bytes(self, table: str) -> int:
        """Bytes of an id map beside its table's rows; 0: without a front one process has all."""
        return 0 if self.topology.front is None else self.uses[table].map_bytes

    def is_cut_in_parts(self, table: str) -> bool:
        """True if a row cut partitions hashed ids, which several hosts then map."""
        hosts = {device.host for device in self.topology.devices}
        return self.uses[table].in_parts and len(hosts) > 1

    def rates(self, table: str, device: Device) -> CostRates:
        """The rates of a table on a device."""
        key = (table, device)
        if key not in self._rates:
            self._rates[key] = self._make_rates(self.uses[table], device)
        return self._rates[key]

    def send_byte(self, device: Device) -> float:
        """Seconds to send a byte to the tower: towers run on the front or on every host, evenly."""
        near = 0.0 if device.peer_bandwidth is None else 1 / device.peer_bandwidth
        if self.topology.front is not None:
            return near
        hosts = {other.host for other in self._in_use}
        return (near + (len(hosts) - 1) / self.topology.network_bandwidth) / len(hosts)

    def launch_seconds(self, device: Device) -> float:
        """Fixed cost of a rank with lookups, including the round trip to its host."""
        front = self.topology.front
        if front is None or not self.topology.is_asked(device):
            return device.launch_seconds
        return device.launch_seconds + front.round_trip_seconds

    def seconds(self, shard: Shard) -> float:
        """Seconds that a shard takes on its device for a batch."""
        table = self.uses[shard.table].table
        rates = self.rates(shard.table, self.topology.devices[shard.rank])
        share = self.access_share(shard.table, shard.first_row, shard.last_row)
        row_bytes = table.row_format.row_bytes(shard.columns)
        return shard_seconds(rates, share, row_bytes, shard.columns, sends=True)

    def replica_seconds(self, table: str, device: Device) -> float:
        """Seconds of a replicated table on each device for its part of the batches."""
        stored = self.uses[table].table
        rates = self.rates(table, device)
        whole = shard_seconds(rates, 1.0, stored.row_bytes, stored.dim, sends=False)
        return whole / len(self._in_use)

    def access_share(self, table: str, first_row: int, last_row: int) -> float:
        """Share of a table's accesses that go to a range of rows."""
        use = self.uses[table]
        rows = use.table.rows
        total = use.pooling_factor
        if (first_row, last_row) == (0, rows) or total == 0 or self.is_cut_in_parts(table):
            return (last_row - first_row) / rows
        return (
            sum(
                feature.pooling_factor * _mass(feature.histogram, rows, first_row, last_row)
                for feature in use.features
            )
            / total
        )

    def device_seconds(self, plan: Plan) -> list[float]:
        """Seconds of each device for a batch, under a plan that uses these ranks."""
        devices = self.topology.devices
        everywhere = {
            device: sum(self.replica_seconds(name, device) for name in plan.replicated)
            for device in set(self._in_use)
        }
        busy, used = [0.0] * len(devices), [False] * len(devices)
        for rank in plan.ranks:
            busy[rank], used[rank] = everywhere[devices[rank]], bool(plan.replicated)
        for shard in plan.shards:
            busy[shard.rank] += self.seconds(shard)
            used[shard.rank] = True
        return [
            seconds + (self.launch_seconds(device) if at_work else 0.0)
            for seconds, at_work, device in zip(busy, used, self.topology.devices, strict=True)
        ]

    @property
    def _in_use(self) -> list[Device]:
        return [
            device for rank, device in enumerate(self.topology.devices) if rank not in self.unused
        ]

    def _make_rates(self, use: TableUse, device: Device) -> CostRates:
        hit = self._hit(use, device)
        return CostRates(
            read_byte=(1 - hit) / device.memory_bandwidth + hit / device.cache_bandwidth,
            write_byte=1 / device.memory_bandwidth,
            send_byte=self.send_byte(device),
            receive_byte=1 / device.host_bandwidth,
            map_id=_LINE_BYTES / device.memory_bandwidth if self.map_bytes(use.table.name) else 0.0,
            granule=device.granule_bytes,
            ids=self.batch * use.pooling_factor,
            vectors=self.batch * use.vectors,
        )

    def _hit(self, use: TableUse, device: Device) -> float:
        # Only where skew is known: otherwise no cache hits are assumed.
        known = [f for f in use.features if f.zipf is not None and f.pooling_factor > 0]
        if not known:
            return 0.0
        if device not in self._traffic:
            self._traffic[device] = sum(
                other.pooling_factor * other.table.row_bytes for other in self.uses.values()
            )
        reads = use.pooling_factor * use.table.row_bytes
        cached = device.cache_bytes * reads / self._traffic[device] / use.table.row_bytes
        return (
            sum(
                f.pooling_factor * share_of_hottest(f.zipf or 0.0, use.table.rows, cached)
                for f in known
            )
            / use.pooling_factor
        )


# Increment when the planner would make another plan of the same input.
_PLANNER_VERSION = 2


def plan_key(load: CostModel) -> str:
    """A SHA-256 (64 hexadecimal digits) of tables, their use, devices and batch.

    Plans of equal keys are equal.
    """
    uses = {name: asdict(load.uses[name]) for name in sorted(load.uses)}
    for name in uses:
        # Without id maps, keys equal those of earlier releases.
        if not load.map_bytes(name):
            del uses[name]["map_bytes"]
        if not load.is_cut_in_parts(name):
            del uses[name]["in_parts"]
        if not load.uses[name].unpooled:
            del uses[name]["unpooled"]
    devices = [asdict(device) for device in load.topology.devices]
    network = load.topology.network_bandwidth
    fields = [_PLANNER_VERSION, load.batch, network, devices, [*uses.values()]]
    if load.topology.front is not None:
        fields.append(asdict(load.topology.front))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def shard_seconds(
    rates: CostRates, share: float, row_bytes: float, columns: float, *, sends: bool
) -> float:
    """The cost model's formula; see the module.

    `share` is the shard's part of the table's ids; `sends`: its vectors leave the device.
    """
    ids = rates.ids * share
    outputs = rates.vectors * columns * OUTPUT_BYTES
    read = ids * (row_bytes + rates.granule - 1) * rates.read_byte
    write = outputs * (rates.write_byte + (rates.send_byte if sends else 0.0))
    return read + write + ids * (ID_BYTES * rates.receive_byte + rates.map_id)


def _mass(histogram: Sequence[float], rows: int, first_row: int, last_row: int) -> float:
    if not histogram:
        return (last_row - first_row) / rows
    bins = len(histogram)
    start, stop = first_row * bins / rows, last_row * bins / rows
    mass = 0.0
    for index in range(int(start), min(bins, int(stop) + 1)):
        mass += histogram[index] * max(0.0, min(stop, index + 1) - max(start, index))
    total = sum(histogram)
    # Parts of subnormal numbers round to zero.
    return mass / total if total >= sys.float_info.min else (last_row - first_row) / rows
