"""Publishes a model."""

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.wording import counted
from serving.commands.console import JsonOption, print_result, progress_bars
from serving.commands.models.publish_changes import ChangeOptions, publish_changes
from serving.commands.models.publish_options import PublishJob, PublishOptions
from serving.commands.models.quantization import summary
from serving.commands.options.option_fields import declare_fields
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError
from sharded_infer.repositories.signatures.keys import read_signing_keys

if TYPE_CHECKING:
    from sharded_infer.publishing.part_publication import PublishedPart
    from sharded_infer.publishing.publication import PublishedVersion

_PART = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


def parse_part(text: str) -> tuple[int, int]:
    """Parse number and number of parts, such as `2/4`; raise InputError for other text."""
    match = _PART.fullmatch(text)
    if match is None:
        raise InputError(f"--part: expected I/N, such as 2/4, got {text!r:.40}")
    return int(match[1]), int(match[2])


def publish_command(
    part: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Only encode and store part I of N of the tables' rows, such as 2/4. Parts may be "
            "made in any order, at once, and again.",
        ),
    ] = None,
    join: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Publish from N parts that were made with --part, instead of encoding the tables.",
            min=1,
        ),
    ] = None,
    as_json: JsonOption = False,
    **values: Any,
) -> None:
    """Quantize, plan and publish a model as its next version.

    The version is written to a staging folder, checked against the fp32 model on golden requests
    and calibration samples, and renamed into place. A failure before that leaves the repository
    unchanged.

    Several machines share the work: each runs the command with --part I/N, then one runs it with
    --join N and the same spec, weights, budgets and layouts. The version has the files of a whole
    publish.

    With --changed, --base or --follow changed rows alone are published, in front of a version's:
    seconds instead of minutes. `repo compact` makes such a version whole.
    """
    changes = ChangeOptions(
        **{field.name: values.pop(field.name) for field in fields(ChangeOptions)}
    )
    if changes.are_given:
        if part is not None or join is not None:
            raise InputError("--part and --join: changed rows are published by one process")
        publish_changes(changes, values, as_json=as_json)
        return
    if missing := [name for name in ("spec", "weights") if values[name] is None]:
        raise InputError(
            f"--{missing[0]}: expected it, or --changed to publish changed rows of a version alone"
        )
    job = PublishJob.read(PublishOptions(**values))
    if part is not None:
        number, parts = parse_part(part)
        _check_part_options(job.options, join)
        with progress_bars() as progress:
            stored = job.store_part(number, parts, progress)
        _print_part(job.spec.name, stored, as_json=as_json)
        return
    keys = read_signing_keys(job.options.sign_key or ())
    trained = job.read_trained()
    with progress_bars() as progress:
        published = job.publish(trained, keys=keys, parts=join, progress=progress)
    print_version(job.spec.name, published, {}, as_json=as_json)


def _check_part_options(options: PublishOptions, join: int | None) -> None:
    refused = {
        "--calibration": options.calibration,
        "--note": options.note,
        "--run-id": options.run_id,
        "--source-revision": options.source_revision,
        "--sign-key": options.sign_key,
        "--join": join,
    }
    if given := [option for option, value in refused.items() if value]:
        raise InputError(f"{given[0]} is for the step that joins the parts, not for --part")


def _print_part(model: str, made: "PublishedPart", *, as_json: bool) -> None:
    fields = asdict(made)
    print_result(
        {"model": model, "path": fields.pop("location"), **fields},
        f"stored part {made.part}/{made.parts} of {model}: {counted(made.rows, 'row', ',')} of "
        f"{counted(len(made.files), 'table file')}, {size_text(made.fp32_bytes)} -> "
        f"{size_text(made.table_bytes)}\n{made.location}",
        as_json=as_json,
    )


def print_version(
    model: str, published: "PublishedVersion", parts: Mapping[str, object], *, as_json: bool
) -> None:
    """Print a published version, with the fields of its parts."""
    fields = {
        "model": model,
        "version": published.version,
        "path": published.location,
        "fp32_bytes": published.fp32_bytes,
        "table_bytes": published.table_bytes,
        "max_score_diff": published.max_score_diff,
        "imported": published.compared,
        "planning_seconds": published.planning_seconds,
    }
    print_result(
        {**fields, **parts},
        f"published {model} version {published.version}: {summary(published.report)}\n"
        f"golden requests within {published.max_score_diff:.2g} of fp32\n"
        f"{published.compared}\nplanned in {published.planning_seconds:.2g} s\n"
        f"{published.location}",
        as_json=as_json,
    )


declare_fields(publish_command, PublishOptions, ChangeOptions, optional=("spec", "weights"))
