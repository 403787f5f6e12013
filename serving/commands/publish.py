"""Publishes a model."""

from pathlib import Path
from typing import Annotated

import typer

from quant.source import open_weights
from serving.commands.console import OUT, print_json
from serving.commands.versions import JsonOption, RepositoryOption
from serving.progress import progress_bars
from serving.sample_statistics import statistics_of
from serving.samples import read_samples
from sharded_infer.publish import publish
from sharded_infer.sizes import size_text
from sharded_infer.spec import load_spec
from sharded_infer.tower_source import load_tower


def publish_command(
    spec: Annotated[Path, typer.Option(help="The model's description, model.toml.")],
    weights: Annotated[
        Path, typer.Option(help="Trained weights: .safetensors, or .pt (read without unpickling).")
    ],
    repository: RepositoryOption,
    topology: Annotated[
        list[str] | None,
        typer.Option(help="Layout to plan for, such as cpu:2 or cpu:2x16GB; may be repeated."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="Samples (.json, .jsonl, .tsv) to count the planner's statistics from."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize, plan and publish a model as its next version.

    The version is written beside its place, checked against the fp32 model on golden requests, and
    renamed into place. Whatever goes wrong before that leaves the repository as it was.
    """
    described = load_spec(spec)
    source = open_weights(weights)
    tower = load_tower(described, source, spec.parent)
    statistics = None if samples is None else statistics_of(described, read_samples(samples))
    with progress_bars() as progress:
        published = publish(
            described,
            source,
            tower,
            repository,
            topologies=tuple(topology or ("cpu:1",)),
            statistics=statistics,
            progress=progress,
        )
    fields = {
        "model": described.name,
        "version": published.version,
        "path": str(published.path),
        "fp32_bytes": published.fp32_bytes,
        "table_bytes": published.table_bytes,
        "max_score_diff": published.max_score_diff,
    }
    if as_json:
        print_json(fields)
        return
    OUT.print(
        f"published {described.name} version {published.version}: tables "
        f"{size_text(published.fp32_bytes)} -> {size_text(published.table_bytes)}, golden requests "
        f"within {published.max_score_diff:.2g} of fp32\n{published.path}",
        highlight=False,
        soft_wrap=True,
    )
