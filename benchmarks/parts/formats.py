"""AUC of a trained model on held-out clicks in each mix of row formats.

The demo's model is trained on the first four fifths of a click log, and scored on the rest. Rows
are stored and read back in each mix of formats. The tower computes in fp32, so only the formats
make a difference.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from kernels.row_format import RowFormat
from serving.commands.bench.report import TEXT, print_notes, print_table
from serving.commands.console import check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars
from serving.demo.criteo import FEATURES, Examples
from serving.demo.model import model_input, train_demo
from sharded_infer.artifacts.report_file import MixReport
from sharded_infer.progress import Progress
from sharded_infer.publishing.quantization import open_format_plan, published_mix
from sharded_infer.quality.fp32_model import Fp32Model, Mix
from sharded_infer.quality.quality import CalibrationSamples, measure_quality
from sharded_infer.specs.feature_statistics import FeatureStatistics, count_statistics
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec

BUDGET_SHARE = 6  # the budgeted mix has this part of the fp32 tables' bytes


@dataclass(frozen=True, slots=True)
class FormatQuality:
    """Figures on one click log, of mixes from `fp32` on; the clicks are of the scored lines."""

    data: str
    training_rows: int
    scored_rows: int
    clicks: int
    mixes: tuple[MixReport, ...]
    budget_formats: Mapping[str, int]


def formats_command(
    data: Annotated[
        Path | None,
        typer.Option(help="Click log in Criteo's format (TSV); default: one is generated."),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=10, help="Lines to generate, or the most lines to read.")
    ] = 20_000,
    json_file: JsonFileOption = None,
) -> None:
    """Measure AUC, log loss and score differences of a trained model in each row format.

    Trains the demo's model on the first four fifths of the lines and scores the rest. Rows are
    stored and read back as bf16, int8, int4 and int2, and in the mix that a memory budget of a
    sixth of the fp32 size chooses.
    """
    check_target(json_file)
    torch.set_num_threads(1)
    with progress_bars() as progress:
        measured = measure_formats(data, rows, progress)
    fp32 = measured.mixes[0]
    figure = ".5f"
    print_table(
        [
            ("mix", TEXT), ("of fp32", ".3f"), ("AUC", figure), ("change", f"+{figure}"),
            ("log loss", figure), ("mean", figure), ("p99", figure), ("max", figure),
        ],
        (
            (
                mix.name, mix.table_bytes / fp32.table_bytes, mix.auc,
                None if mix.auc is None or fp32.auc is None else mix.auc - fp32.auc,
                mix.log_loss, mix.mean_score_diff, mix.p99_score_diff, mix.max_score_diff,
            )
            for mix in measured.mixes
        ),
    )  # fmt: skip
    chosen = ", ".join(f"{count} {name}" for name, count in measured.budget_formats.items())
    print_notes(
        f"{measured.data}: trained on {measured.training_rows:,} lines, scored "
        f"{measured.scored_rows:,} with {measured.clicks:,} clicks; mean, p99 and max are "
        f"differences of scores from fp32's; the budget chose {chosen}"
    )
    write_json(json_file, asdict(measured))


def measure_formats(data: Path | None, rows: int, progress: Progress) -> FormatQuality:
    """Train, and score the held-out clicks in each mix of formats."""
    demo = train_demo(data, rows, progress)
    plan = open_format_plan(demo.spec, demo.trained.embeddings)
    fp32_bytes = sum(4 * table.rows * table.dim for table in demo.spec.tables)
    budget = QuantizationSpec(memory_budget=f"{fp32_bytes / BUDGET_SHARE / 1000:.3f}KB")
    budgeted = open_format_plan(
        replace(demo.spec, quantization=budget),
        demo.trained.embeddings,
        _statistics(demo.spec, demo.training),
        progress,
    )
    mixes = {name: _uniform(demo.spec, f, clip=clip) for name, f, clip in _UNIFORM}
    mixes[f"budget 1/{BUDGET_SHARE}"] = published_mix(budgeted)
    model = Fp32Model(plan.spec, plan.weights, demo.trained.tower)
    (output,) = demo.spec.tower.outputs
    samples = CalibrationSamples(model_input(demo.held_out), {output: demo.held_out.labels})
    formats = [str(table.row_format) for table in budgeted.tables]
    return FormatQuality(
        data="generated clicks" if data is None else data.name,
        training_rows=len(demo.training),
        scored_rows=len(demo.held_out),
        clicks=int(demo.held_out.labels.sum()),
        mixes=tuple(measure_quality(model, samples, mixes, None, progress)),
        budget_formats={name: formats.count(name) for name in sorted(set(formats))},
    )


_UNIFORM = (
    ("bf16", RowFormat.BF16, True),
    ("int8", RowFormat.INT8, True),
    ("int4", RowFormat.INT4, True),
    ("int4 min-max", RowFormat.INT4, False),
    ("int2", RowFormat.INT2, True),
    ("int2 min-max", RowFormat.INT2, False),
)


def _uniform(spec: ModelSpec, row_format: RowFormat, *, clip: bool) -> Mix:
    return Mix({table.name: row_format for table in spec.tables}, clip)


def _statistics(spec: ModelSpec, examples: Examples) -> dict[str, FeatureStatistics]:
    found = {}
    for index, name in enumerate(FEATURES):
        starts, lengths = examples.bag_starts[index].tolist(), examples.lengths[index].tolist()
        bags = (
            examples.values[start : start + length].tolist()
            for start, length in zip(starts, lengths, strict=True)
        )
        found[name] = count_statistics(bags, spec.tables[index].rows)
    return found
