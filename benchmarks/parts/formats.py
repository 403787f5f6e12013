"""AUC of a trained model on held-out clicks in each mix of row formats.

The tower computes in fp32, so only the formats make a difference.
"""

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from kernels.row_format import RowFormat
from serving.commands.bench.report import TEXT, Report, bench_command
from serving.demo.model import model_input, train_demo
from sharded_infer.progress import Progress
from sharded_infer.publishing.quantization import open_format_plan, published_mix
from sharded_infer.quality.fp32_model import Fp32Model, Mix
from sharded_infer.quality.quality import CalibrationSamples, measure_quality
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.specs.model_spec import QuantizationSpec

BUDGET_SHARE = 6  # the budgeted mix has this part of the fp32 tables' bytes


_UNIFORM = (
    ("bf16", RowFormat.BF16, True),
    ("int8", RowFormat.INT8, True),
    ("int4", RowFormat.INT4, True),
    ("int4 min-max", RowFormat.INT4, False),
    ("int2", RowFormat.INT2, True),
    ("int2 min-max", RowFormat.INT2, False),
)


@bench_command
def formats_command(
    progress: Progress,
    data: Annotated[
        Path | None,
        typer.Option(help="Click log in Criteo's format (TSV); default: one is generated."),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=10, help="Lines to generate, or the most lines to read.")
    ] = 20_000,
) -> Report:
    """Measure AUC, log loss and score differences of a trained model in each row format.

    Trains the demo's model on the first four fifths of the lines and scores the rest. Rows are
    stored and read back as bf16, int8, int4 and int2, and in the mix that a memory budget of a
    sixth of the fp32 size chooses.
    """
    torch.set_num_threads(1)
    demo = train_demo(data, rows, progress)
    plan = open_format_plan(demo.spec, demo.trained.embeddings)
    fp32_bytes = sum(4 * table.rows * table.dim for table in demo.spec.tables)
    budget = QuantizationSpec(memory_budget=f"{fp32_bytes / BUDGET_SHARE / 1000:.3f}KB")
    budgeted = open_format_plan(
        replace(demo.spec, quantization=budget),
        demo.trained.embeddings,
        statistics_of(demo.spec, model_input(demo.training)),
        progress,
    )
    mixes = {
        name: Mix({table.name: row_format for table in demo.spec.tables}, clip)
        for name, row_format, clip in _UNIFORM
    }
    mixes[f"budget 1/{BUDGET_SHARE}"] = published_mix(budgeted)
    model = Fp32Model(plan.spec, plan.weights, demo.trained.tower)
    (output,) = demo.spec.tower.outputs
    samples = CalibrationSamples(model_input(demo.held_out), {output: demo.held_out.labels})
    measured = measure_quality(model, samples, mixes, None, progress)
    source = "generated clicks" if data is None else data.name
    clicks = int(demo.held_out.labels.sum())
    formats = Counter(sorted(str(table.row_format) for table in budgeted.tables))
    fp32 = measured[0]
    figure = ".5f"
    return Report(
        [
            ("mix", TEXT), ("of fp32", ".3f"), ("AUC", figure), ("change", f"+{figure}"),
            ("log loss", figure), ("mean", figure), ("p99", figure), ("max", figure),
        ],
        [
            (
                mix.name, mix.table_bytes / fp32.table_bytes, mix.auc,
                None if mix.auc is None or fp32.auc is None else mix.auc - fp32.auc,
                mix.log_loss, mix.mean_score_diff, mix.p99_score_diff, mix.max_score_diff,
            )
            for mix in measured
        ],
        [
            f"{source}: trained on {len(demo.training):,} lines, scored {len(demo.held_out):,} "
            f"with {clicks:,} clicks; mean, p99 and max are differences of scores from fp32's; "
            f"the budget chose {', '.join(f'{n} {name}' for name, n in formats.items())}"
        ],
        {
            "data": source,
            "training_rows": len(demo.training),
            "scored_rows": len(demo.held_out),
            "clicks": clicks,
            "mixes": [asdict(mix) for mix in measured],
            "budget_formats": formats,
        },
    )  # fmt: skip
