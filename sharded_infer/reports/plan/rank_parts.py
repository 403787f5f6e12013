"""The parts of tables on each rank of a plan, with their costs, for the plan's page."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from heapq import nlargest

from kernels.wording import counted
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Shard
from sharded_infer.planning.plan_result import PlanResult
from sharded_infer.planning.topology import Device

_HOTTEST = 5  # maximum number of tables
_HOTTEST_SHARE = 0.2  # maximum share of all tables


class Kind(StrEnum):
    """A part's relation to its table, as shown on pages."""

    WHOLE = "whole table"
    COLUMN = "column shard"
    ROW = "row shard"
    REPLICA = "replicated table"


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of a table on one rank (rows and columns: a row shard); seconds of a batch."""

    table: str
    kind: Kind
    rows: range
    columns: range
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class RankParts:
    """All parts on one rank; `seconds` are for a batch.

    Attributes:
        own: parts that only this rank holds.
        replicas: tables that every rank in use holds; equal devices share one tuple.
        launch_seconds: fixed cost, included in `seconds`, of a fused call and the round trip to
            another host; 0 for an empty rank.
    """

    rank: int
    device: Device
    own: tuple[Part, ...]
    replicas: tuple[Part, ...]
    launch_seconds: float
    seconds: float
    bytes: int

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self.own) + len(self.replicas)

    @property
    def tables(self) -> int:
        """Number of tables that the rank holds, in full or in part."""
        return len({part.table for part in self.own}) + len(self.replicas)


@dataclass(frozen=True, slots=True)
class HotTable:
    """A table with a large share of all time; `seconds` of a batch over all ranks."""

    table: str
    seconds: float
    share: float
    where: str


def parts_by_rank(result: PlanResult, load: CostModel) -> list[RankParts]:
    """The parts on each rank, for a plan made with `load`."""
    load = load.under(result.plan)
    devices = load.topology.devices
    own: list[list[Part]] = [[] for _ in devices]
    for shard in result.plan.shards:
        own[shard.rank].append(_part(shard, load))
    everywhere = {
        device: tuple(_replica(name, device, load) for name in result.plan.replicated)
        for device in set(devices)
    }
    replicas = [
        () if rank in result.plan.unused else everywhere[device]
        for rank, device in enumerate(devices)
    ]
    figures = result.figures
    return [
        RankParts(
            rank=rank,
            device=device,
            own=tuple(own[rank]),
            replicas=replicas[rank],
            launch_seconds=load.launch_seconds(device) if own[rank] or replicas[rank] else 0.0,
            seconds=figures.seconds[rank],
            bytes=figures.bytes[rank],
        )
        for rank, device in enumerate(devices)
    ]


def hottest_tables(ranks: Iterable[RankParts]) -> list[HotTable]:
    """The tables with the largest share of the time, hottest first; empty if no time is spent."""
    listed = list(ranks)
    seconds: defaultdict[str, float] = defaultdict(float)
    held: defaultdict[str, Counter[Kind]] = defaultdict(Counter)
    for rank in listed:
        for part in rank.own:
            seconds[part.table] += part.seconds
            held[part.table][part.kind] += 1
    # Equal devices hold equal replicas, so each kind of device is processed once.
    sharing = [rank for rank in listed if rank.replicas]
    count_of_device = Counter(rank.device for rank in sharing)
    for device, replicas in {rank.device: rank.replicas for rank in sharing}.items():
        for part in replicas:
            seconds[part.table] += part.seconds * count_of_device[device]
            held[part.table][part.kind] += count_of_device[device]
    total = sum(seconds.values())
    count = min(_HOTTEST, max(1, int(_HOTTEST_SHARE * len(seconds))))
    chosen = nlargest(count, sorted(seconds), key=lambda name: seconds[name]) if total else []
    return [
        HotTable(name, seconds[name], seconds[name] / total, _where(held[name])) for name in chosen
    ]


def _where(held: Counter[Kind]) -> str:
    if held[Kind.WHOLE]:
        return "whole, on one rank"
    if held[Kind.REPLICA]:
        return "replicated on every rank in use"
    return ", ".join(counted(count, kind) for kind, count in sorted(held.items()))


def _part(shard: Shard, load: CostModel) -> Part:
    table = load.uses[shard.table].table
    kind = Kind.WHOLE
    if shard.rows < table.rows:
        kind = Kind.ROW
    elif shard.columns < table.dim:
        kind = Kind.COLUMN
    return Part(
        table=shard.table,
        kind=kind,
        rows=range(shard.first_row, shard.last_row),
        columns=range(shard.first_column, shard.last_column),
        seconds=load.seconds(shard),
        bytes=shard.rows * table.row_format.row_bytes(shard.columns),
    )


def _replica(name: str, device: Device, load: CostModel) -> Part:
    table = load.uses[name].table
    return Part(
        table=name,
        kind=Kind.REPLICA,
        rows=range(table.rows),
        columns=range(table.dim),
        seconds=load.replica_seconds(name, device),
        bytes=table.stored_bytes,
    )
