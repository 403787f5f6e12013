"""A plan with its figures as plain values: what `plan --json` writes and `--compare` reads."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernels.row_format import RowFormat
from sharded_infer.artifact import MAX_SMALL_BYTES
from sharded_infer.errors import PlanError
from sharded_infer.load_model import LoadModel
from sharded_infer.plan import Plan, StoredTable, dump_plan, load_plan
from sharded_infer.planning.moves import Move
from sharded_infer.planning.result import PlanResult
from sharded_infer.regular_file import read_regular

# A rank is bound by time when it is this near to the slowest, by memory when it is this full.
_BOUND_BY_TIME = 0.98
_BOUND_BY_MEMORY = 0.95


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank under a plan.

    Attributes:
        rank: its number.
        kind: `cpu` or `cuda`.
        tables: tables of which it holds a part.
        bytes: what it holds.
        memory_share: part of its memory; None where it has no limit.
        seconds: its time for a batch.
        binding: `time`, `memory`, `time and memory` or an empty string.
    """

    rank: int
    kind: str
    tables: int
    bytes: int
    memory_share: float | None
    seconds: float
    binding: str


def rank_reports(result: PlanResult) -> list[RankReport]:
    """Every rank of a plan, in order."""
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
                memory_share=share,
                seconds=figures.seconds[rank],
                binding=binding,
            )
        )
    return reports


def report_fields(
    result: PlanResult, load: LoadModel, moves: Sequence[Move] = ()
) -> dict[str, object]:
    """Everything that is known of a plan, as plain values.

    Args:
        result: the plan and its figures.
        load: what it was made for.
        moves: what it moves from a plan before it.
    """
    return {
        "plan": json.loads(dump_plan(result.plan)),
        "tables": [asdict(use.table) for use in load.uses.values()],
        "batch": load.batch,
        "max_seconds": result.figures.max_seconds,
        "bound_seconds": result.bound_seconds,
        "gap": result.gap,
        "memory_imbalance": result.figures.memory_imbalance,
        "ranks": [asdict(report) for report in rank_reports(result)],
        "decisions": list(result.decisions),
        "moves": [asdict(move) for move in moves],
    }


def read_report(path: Path) -> tuple[Plan, dict[str, StoredTable]]:
    """Reads back a plan and its tables from a file of `plan --json`.

    Raises:
        PlanError: it cannot be read or is not such a file.
    """
    try:
        fields = json.loads(read_regular(path, MAX_SMALL_BYTES, follow=True))
        plan = load_plan(json.dumps(fields["plan"]).encode(), str(path))
        tables = {
            t["name"]: StoredTable(t["name"], t["rows"], t["dim"], RowFormat(t["row_format"]))
            for t in fields["tables"]
        }
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from error
    # Python's JSON reader has no limit of its own on nesting.
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            f"{path}: not a file that 'sharded-infer plan --json' wrote: {error!r:.200}"
        ) from error
    return plan, tables
