"""Figures of towers over a user's history."""

from collections.abc import Sequence
from pathlib import Path

from serving.bench.parts.sequence_engine import SequenceMeasurement, measure_sequences
from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.commands.bench.report import TEXT, print_notes, print_table, times
from serving.commands.console import write_json
from serving.commands.progress_bars import progress_bars
from sharded_infer.specs.precision import Precision

# So many rows fit no cache.
_MOST_ROWS = 500_000


def bench_sequences(
    workload: str,
    *,
    max_rows: int,
    precisions: Sequence[Precision],
    history: int,
    candidates: int,
    rounds: int,
    seconds: float,
    json_file: Path | None,
) -> None:
    """Measure one of `SEQUENCE_MODELS` in some precisions of its tower."""
    found: dict[Precision, SequenceMeasurement] = {}
    with progress_bars() as progress:
        for precision in dict.fromkeys(precisions):
            found[precision] = measure_sequences(
                SEQUENCE_MODELS[workload],
                precision=precision,
                rows=min(max_rows, _MOST_ROWS),
                history=history,
                candidates=candidates,
                rounds=rounds,
                seconds=seconds,
                progress=progress,
            )
    print_table(
        [("", TEXT), ("ms a request", times(1e3, ".3g")), ("of once", ".2f")],
        (
            (name, taken, taken / one.once)
            for precision, one in found.items()
            for name, taken in (
                (f"history once, {precision}", one.once),
                (f"history with every candidate, {precision}", one.each),
                ("eager torch, fp32, with every candidate", one.eager),
                (f"matrix products, {one.running}", one.products),
                ("copies of rows", one.copies),
            )
        ),
    )
    print_notes(f"\n{workload}: {history} ids of history, {candidates} candidates, one core")
    fastest = min(found, key=lambda precision: found[precision].once)
    fields = {
        "workload": workload,
        "history": history,
        "candidates": candidates,
        "rounds": rounds,
        "precision": fastest,
        **_fields(found[fastest]),
        "running": {precision: one.running for precision, one in found.items()},
        "towers": {precision: _fields(one) for precision, one in found.items()},
    }
    write_json(json_file, fields)


def _fields(measured: SequenceMeasurement) -> dict[str, object]:
    return {
        "over_per_candidate": measured.over_per_candidate,
        "limit_fraction": measured.limit_fraction,
        "over_eager": measured.eager / measured.once,
        "once_seconds": measured.once,
        "each_seconds": measured.each,
        "eager_seconds": measured.eager,
        "product_seconds": measured.products,
        "copy_seconds": measured.copies,
    }
