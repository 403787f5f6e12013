"""Shows the figures of towers over a user's history."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kernels.machine import machine
from serving.bench.parts.sequence_engine import SequenceMeasurement, measure_sequences
from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.commands.console import OUT, write_json
from serving.commands.progress_bars import progress_bars
from sharded_infer.specs.precision import Precision

# As many rows do not fit any cache.
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
    """Measures one of `SEQUENCE_MODELS` in some precisions of its tower."""
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
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("", "ms a request", "of once"):
        table.add_column(heading, justify="right" if heading else "left")
    for precision, one in found.items():
        for name, taken in (
            (f"history once, {precision}", one.once),
            (f"history with every candidate, {precision}", one.each),
            ("eager torch, fp32, with every candidate", one.eager),
            (f"matrix products, {one.running}", one.products),
            ("copies of rows", one.copies),
        ):
            table.add_row(name, f"{taken * 1e3:.3g}", f"{taken / one.once:.2f}")
    OUT.print(table)
    OUT.print(
        f"\n{workload}: {history} ids of history, {candidates} candidates, one core, "
        f"{machine().class_text}",
        highlight=False,
        soft_wrap=True,
    )
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
