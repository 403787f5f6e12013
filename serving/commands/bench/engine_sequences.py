"""Figures of towers over a user's history."""

from collections.abc import Sequence

from serving.bench.parts.sequence_engine import measure_sequences
from serving.bench.turns import Turns
from serving.bench.workloads.sequence_models import SequenceModel
from serving.commands.bench.report import TEXT, Report, times
from sharded_infer.specs.precision import Precision

# So many rows fit no cache.
_MOST_ROWS = 500_000


def bench_sequences(
    workload: SequenceModel,
    *,
    max_rows: int,
    precisions: Sequence[Precision],
    history: int,
    candidates: int,
    turns: Turns,
) -> Report:
    """Measure a model in some precisions of its tower."""
    towers: dict[Precision, dict[str, float]] = {}
    running: dict[Precision, Precision] = {}
    for precision in dict.fromkeys(precisions):
        towers[precision], running[precision] = measure_sequences(
            workload,
            precision=precision,
            rows=min(max_rows, _MOST_ROWS),
            history=history,
            candidates=candidates,
            turns=turns,
        )
    fastest = min(towers, key=lambda precision: towers[precision]["once_seconds"])
    return Report(
        [("", TEXT), ("ms a request", times(1e3, ".3g")), ("of once", ".2f")],
        [
            (name, one[f"{key}_seconds"], one[f"{key}_seconds"] / one["once_seconds"])
            for precision, one in towers.items()
            for name, key in (
                (f"history once, {precision}", "once"),
                (f"history with every candidate, {precision}", "each"),
                ("eager torch, fp32, with every candidate", "eager"),
                (f"matrix products, {running[precision]}", "product"),
                ("copies of rows", "copy"),
            )
        ],
        [f"\n{workload.name}: {history} ids of history, {candidates} candidates, one core"],
        {
            "workload": workload.name,
            "history": history,
            "candidates": candidates,
            "rounds": turns.rounds,
            "precision": fastest,
            **towers[fastest],
            "running": running,
            "towers": towers,
        },
    )
