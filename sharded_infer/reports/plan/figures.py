"""A plan with its figures as plain values, written by `plan --json` and read by `--compare`."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernels.row_format import RowFormat
from sharded_infer.artifacts.artifact import MAX_SMALL_BYTES
from sharded_infer.errors import PlanError
from sharded_infer.files.regular_file import read_regular
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.front_traffic import Traffic, traffic_by_host
from sharded_infer.planning.plan import Plan, StoredTable, dump_plan, load_plan
from sharded_infer.planning.plan_moves import Move
from sharded_infer.planning.plan_result import PlanResult
from sharded_infer.planning.topology import FrontCosts

# A rank is bound by time from this share of the slowest, by memory from this share of its limit.
_BOUND_BY_TIME = 0.98
_BOUND_BY_MEMORY = 0.95


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank under a plan.

    Attributes:
        kind: `cpu` or `cuda`.
        tables: number of tables that it holds, in full or in part.
        bytes: of rows and `map_bytes`, those of id maps.
        memory_share: share of its memory limit; None if it has no limit.
        seconds: time for a batch.
        binding: `time`, `memory`, `time and memory` or an empty string.
    """

    rank: int
    kind: str
    tables: int
    bytes: int
    map_bytes: int
    memory_share: float | None
    seconds: float
    binding: str


def rank_reports(result: PlanResult) -> list[RankReport]:
    """Reports of all ranks, in order."""
    figures, plan = result.figures, result.plan
    held = Counter(rank for _, rank in {(s.table, s.rank) for s in plan.shards})
    reports = []
    for rank, device in enumerate(plan.topology.devices):
        share = figures.shares[rank]
        by_time = figures.seconds[rank] >= _BOUND_BY_TIME * figures.max_seconds
        by_memory = share is not None and share >= _BOUND_BY_MEMORY
        binding = " and ".join(w for w, on in (("time", by_time), ("memory", by_memory)) if on)
        reports.append(
            RankReport(
                rank=rank,
                kind=device.kind,
                tables=held[rank] + (0 if rank in plan.unused else len(plan.replicated)),
                bytes=figures.bytes[rank],
                map_bytes=figures.map_bytes[rank],
                memory_share=share,
                seconds=figures.seconds[rank],
                binding=binding,
            )
        )
    return reports


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host under a plan.

    Attributes:
        role: `front`; `asked` or `not asked` by it; empty if the topology names no front.
        tables: number of tables that it holds, in full or in part.
        sent_bytes: ids that a front sends it for a batch; see `traffic_by_host`.
        received_bytes: sums that it returns.
        seconds: of its slowest rank, with the round trip.
        share: of the request's seconds.
    """

    host: int
    role: str
    tables: int
    bytes: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    share: float


def host_reports(result: PlanResult, load: CostModel) -> list[HostReport]:
    """Reports of all hosts, ascending."""
    plan, figures = result.plan, result.figures
    traffic = traffic_by_host(plan, load)
    ranks: dict[int, list[int]] = {}
    for rank, device in enumerate(plan.topology.devices):
        ranks.setdefault(device.host, []).append(rank)
    held: dict[int, set[str]] = {host: set() for host in ranks}
    for shard in plan.shards:
        held[plan.topology.devices[shard.rank].host].add(shard.table)
    reports = []
    for host, own in sorted(ranks.items()):
        seconds = max(figures.seconds[rank] for rank in own)
        of_host = traffic.get(host, Traffic())
        is_used = not set(own) <= set(plan.unused)
        reports.append(
            HostReport(
                host=host,
                role=_role(plan.topology.front, host, is_asked=host in traffic),
                tables=len(held[host]) + (len(plan.replicated) if is_used else 0),
                bytes=sum(figures.bytes[rank] for rank in own),
                sent_bytes=round(of_host.sent),
                received_bytes=round(of_host.received),
                seconds=seconds,
                share=seconds / figures.request_seconds if figures.request_seconds else 0.0,
            )
        )
    return reports


def _role(front: FrontCosts | None, host: int, *, is_asked: bool) -> str:
    if front is None:
        return ""
    if host == front.host:
        return "front"
    return "asked" if is_asked else "not asked"


def report_fields(
    result: PlanResult, load: CostModel, moves: Sequence[Move] = ()
) -> dict[str, object]:
    """A plan with all its figures as plain values; `moves` lead from an earlier plan to it."""
    return {
        "plan": json.loads(dump_plan(result.plan)),
        "tables": [asdict(use.table) for use in load.uses.values()],
        "batch": load.batch,
        "max_seconds": result.figures.max_seconds,
        "front_seconds": result.figures.front_seconds,
        "request_seconds": result.figures.request_seconds,
        "bound_seconds": result.bound_seconds,
        "gap": result.gap,
        "memory_imbalance": result.figures.memory_imbalance,
        "ranks": [asdict(report) for report in rank_reports(result)],
        "hosts": [asdict(report) for report in host_reports(result, load)],
        "decisions": list(result.decisions),
        "moves": [asdict(move) for move in moves],
    }


def read_report(path: Path) -> tuple[Plan, dict[str, StoredTable]]:
    """Read a plan and its tables from a file of `plan --json`; PlanError otherwise."""
    try:
        fields = json.loads(read_regular(path, MAX_SMALL_BYTES, follow=True))
        plan = load_plan(json.dumps(fields["plan"]).encode(), str(path))
        tables = {
            t["name"]: StoredTable(t["name"], t["rows"], t["dim"], RowFormat(t["row_format"]))
            for t in fields["tables"]
        }
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from error
    # Python's JSON reader does not limit nesting, hence RecursionError.
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            f"{path}: not a file that 'sharded-infer plan --json' wrote: {error!r:.200}"
        ) from error
    return plan, tables
