"""Publishes a model."""

from typing import Annotated

import torch
import typer

from quant.checkpoint import open_weights
from serving.commands.console import OUT, print_json
from serving.commands.json_option import JsonOption
from serving.commands.quantization import (
    CalibrationOption,
    ErrorBudgetOption,
    MemoryBudgetOption,
    SamplesOption,
    SpecOption,
    WeightsOption,
    summary,
    with_budget,
)
from serving.commands.version_options import RepositoryOption
from serving.progress import progress_bars
from sharded_infer.format_plan import find_weights
from sharded_infer.publication import publish
from sharded_infer.samples.calibration import read_calibration
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.spec_document import load_spec
from sharded_infer.tower_source import load_tower


def publish_command(
    spec: SpecOption,
    weights: WeightsOption,
    repository: RepositoryOption,
    topology: Annotated[
        list[str] | None,
        typer.Option(help="Layout to plan for, such as cpu:2 or cpu:2x16GB; may be repeated."),
    ] = None,
    memory_budget: MemoryBudgetOption = None,
    error_budget: ErrorBudgetOption = None,
    samples: SamplesOption = None,
    calibration: CalibrationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize, plan and publish a model as its next version.

    The version is written beside its place, checked against the fp32 model on golden requests and
    on calibration samples, and renamed into place. Whatever goes wrong before that leaves the
    repository as it was.
    """
    torch.set_num_threads(1)
    described = with_budget(load_spec(spec), memory_budget, error_budget)
    source = open_weights(weights)
    # Before the tower: where a dim is wrong, its shapes are too.
    find_weights(described, source)
    tower = load_tower(described, source, spec.parent)
    statistics = None if samples is None else statistics_of(described, read_samples(samples))
    measured = None if calibration is None else read_calibration(described, calibration)
    with progress_bars() as progress:
        published = publish(
            described,
            source,
            tower,
            repository,
            topologies=tuple(topology or ("cpu:1",)),
            statistics=statistics,
            calibration=measured,
            progress=progress,
        )
    fields = {
        "model": described.name,
        "version": published.version,
        "path": published.location,
        "fp32_bytes": published.fp32_bytes,
        "table_bytes": published.table_bytes,
        "max_score_diff": published.max_score_diff,
        "imported": published.compared,
    }
    if as_json:
        print_json(fields)
        return
    OUT.print(
        f"published {described.name} version {published.version}: {summary(published.report)}\n"
        f"golden requests within {published.max_score_diff:.2g} of fp32\n"
        f"{published.compared}\n{published.location}",
        highlight=False,
        soft_wrap=True,
    )
