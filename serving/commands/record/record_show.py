"""Shows what a recording holds."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kernels.wording import counted
from serving.commands.console import JsonOption, check_target, print_result, write_target
from serving.commands.lazy_group import load_by_name
from serving.commands.options.version_options import ModelOption
from serving.commands.record.arguments import RecordArgument
from serving.commands.record.record_figures import Labels, VersionFigures, version_figures
from sharded_infer.errors import InputError
from sharded_infer.samples.record import local_record, record_files, recorded_requests


def record_show_command(
    record: RecordArgument,
    model: ModelOption = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Parquet file of labels, 0 or 1, in a column `label`, or `label.OUTPUT` of each "
            "output: also show the AUC."
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help="Columns of --labels: of the request's id and, unless a request has one label, of "
            "the candidate's number from 0.",
        ),
    ] = "request_id,candidate",
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write the figures as a page to this file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a recording: requests, samples, ids, scores and labels of each version."""
    check_target(html)
    joined = None if labels is None else Labels(labels, on.split(","))
    with local_record(record, model) as folder:
        files = record_files(folder, model)
        figures = version_figures(recorded_requests(files), joined)
    if not figures:
        raise InputError(f"{record}: no recorded requests")
    if html is not None:
        render = load_by_name("serving.commands.record.record_page:render_record_page")
        write_target(html, render(files[0].model, figures))
    lines = [line for version, own in figures.items() for line in _lines(version, own)]
    if joined is not None and not any(own.labelled for own in figures.values()):
        lines.append(f"{labels}: no label is of a recorded request")
    fields = {str(version): asdict(own) for version, own in figures.items()}
    print_result(fields, "\n".join(lines), as_json=as_json)


def _lines(version: int, own: VersionFigures) -> Iterator[str]:
    first, last = (
        datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for time in (own.first, own.last)
    )
    yield (
        f"version {version}: {counted(own.requests, 'request')}, {own.failed} failed, "
        f"{counted(own.samples, 'sample')}, {own.ids_outside} unknown ids, {first} to {last} UTC"
    )
    yield f"  seconds: p50 {own.seconds.p50:.3g}, p99 {own.seconds.p99:.3g}"
    sizes = own.sizes
    yield f"  samples a request: p50 {sizes.p50:g}, p99 {sizes.p99:g}, at most {sizes.most:g}"
    for name, ids in own.ids.items():
        yield (
            f"  {name}: {ids.mean:.3g} ids a sample, p50 {ids.p50:g}, p99 {ids.p99:g}, "
            f"at most {ids.most:g}"
        )
    for name, scores in own.scores.items():
        words = [f"{scores.not_finite} not finite"] if scores.not_finite else []
        if (spread := scores.spread) is not None:
            words.append(f"{spread.least:.4g} to {spread.most:.4g}, mean {spread.mean:.4g}")
        if scores.auc is not None:
            words.append(f"AUC {scores.auc:.5f} of {counted(own.labelled, 'labelled sample')}")
        yield f"  {name}: {'; '.join(words)}"
