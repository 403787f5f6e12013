"""Publishes a model."""

from typing import Annotated

import typer

from serving.commands.console import ERRORS, OUT, print_json
from serving.commands.json_option import JsonOption
from serving.commands.lazy_group import load_by_name
from serving.commands.quantization import (
    CalibrationOption,
    ErrorBudgetOption,
    MemoryBudgetOption,
    SamplesOption,
    SpecOption,
    WeightsOption,
    read_trained,
    summary,
    with_budget,
)
from serving.commands.version_options import RepositoryOption
from serving.progress import progress_bars
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.spec_document import load_spec


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
    note: Annotated[
        str | None, typer.Option(help="What to say of the version, kept with it.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="The training run, as a tracker names it; kept likewise.")
    ] = None,
    source_revision: Annotated[
        str | None,
        typer.Option(help="Revision of the code that trained the model; kept likewise."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize, plan and publish a model as its next version.

    The version is written beside its place, checked against the fp32 model on golden requests and
    on calibration samples, and renamed into place. Whatever goes wrong before that leaves the
    repository as it was.
    """
    described = with_budget(load_spec(spec), memory_budget, error_budget)
    statistics = None if samples is None else statistics_of(described, read_samples(samples))
    source, tower, measured = read_trained(described, weights, spec.parent, calibration)
    # Of a `ProgramTower`, whose module takes torch to import.
    if not getattr(tower, "names_inputs", True):
        ERRORS.print(
            f"{described.tower.program} does not say its inputs' names: they are taken in the "
            f"order {', '.join((*described.dense.inputs, 'embeddings'))}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    with progress_bars() as progress:
        published = load_by_name("sharded_infer.publication:publish")(
            described,
            source,
            tower,
            repository,
            topologies=tuple(topology or ("cpu:1",)),
            statistics=statistics,
            calibration=measured,
            note=note,
            run_id=run_id,
            source_revision=source_revision,
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
