"""Publishes a model."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.wording import counted
from serving.commands.console import print_json, print_result, say
from serving.commands.lazy_group import load_by_name
from serving.commands.models.publish_changes import ChangeOptions, publish_changes
from serving.commands.models.publish_options import PublishOptions
from serving.commands.models.quantization import read_trained, summary
from serving.commands.options.json_option import JsonOption
from serving.commands.options.option_fields import declare_fields
from serving.commands.progress_bars import progress_bars
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError
from sharded_infer.progress import Progress
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.order_rows import OrderRows

if TYPE_CHECKING:
    from sharded_infer.publishing.part_publication import PublishedPart
    from sharded_infer.publishing.publication import PublishedVersion

PartOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Only encode and store part I of N of the tables' rows, such as 2/4. Parts may be "
        "made in any order, at once, and again.",
    ),
]
JoinOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Publish from N parts that were made with --part, instead of encoding the tables.",
        min=1,
    ),
]
OrderRowsOption = Annotated[
    OrderRows,
    typer.Option(
        help="frequency: the rows that are used most come first, of each table of which an id map "
        "or --samples says how often. Without an id map it takes 6 bits a row more."
    ),
]
_PART = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


def parse_part(text: str) -> tuple[int, int]:
    """Parse number and number of parts, such as `2/4`; raise InputError for other text."""
    match = _PART.fullmatch(text)
    if match is None:
        raise InputError(f"--part: expected I/N, such as 2/4, got {text!r:.40}")
    return int(match[1]), int(match[2])


def publish_command(
    part: PartOption = None,
    join: JoinOption = None,
    order_rows: OrderRowsOption = OrderRows.AS_TRAINED,
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
    options = PublishOptions(**values)
    described = options.described()
    statistics = options.statistics(described)
    if part is not None:
        number, parts = parse_part(part)
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
        job = PartJob(options, described, statistics, order_rows, parts)
        with progress_bars() as progress:
            made = store_part(job, number, progress)
        _print_part(described.name, made, as_json=as_json)
        return
    keys = options.signing_keys()
    trained = options.read(described)
    with progress_bars() as progress:
        published = options.publish(
            described,
            statistics,
            trained,
            keys=keys,
            parts=join,
            order_rows=order_rows,
            progress=progress,
        )
    if as_json:
        print_json(version_fields(described.name, published))
    else:
        print_version(described.name, published)


def _print_part(model: str, made: "PublishedPart", *, as_json: bool) -> None:
    fields = asdict(made)
    print_result(
        {"model": model, "path": fields.pop("location"), **fields},
        f"stored part {made.part}/{made.parts} of {model}: {counted(made.rows, 'row', ',')} of "
        f"{counted(len(made.files), 'table file')}, {size_text(made.fp32_bytes)} -> "
        f"{size_text(made.table_bytes)}\n{made.location}",
        as_json=as_json,
    )


@dataclass(frozen=True, slots=True)
class PartJob:
    """Inputs that all parts of a publish share."""

    options: PublishOptions
    spec: ModelSpec
    statistics: Mapping[str, FeatureStatistics] | None
    order_rows: OrderRows
    parts: int


def store_part(job: PartJob, part: int, progress: Progress) -> "PublishedPart":
    """Encode and store one part of a checkpoint; see `publish_part`."""
    options, weights = job.options, job.options.weights
    source, *_ = read_trained(job.spec, weights, weights.parent, None, with_tower=False)
    publish_part = load_by_name("sharded_infer.publishing.part_publication:publish_part")
    made: PublishedPart = publish_part(
        job.spec,
        source,
        options.repository,
        part=part,
        parts=job.parts,
        statistics=job.statistics,
        # The rows of unmapped tables keep their order in any plan.
        topologies=options.topologies if job.spec.mapped_tables else ("cpu:1",),
        id_maps=options.id_maps(job.spec, job.order_rows),
        order_rows=job.order_rows,
        frequencies=options.frequencies(job.spec, job.order_rows),
        progress=progress,
    )
    return made


def version_fields(model: str, published: "PublishedVersion") -> dict[str, object]:
    """Fields of a published version, for scripts."""
    return {
        "model": model,
        "version": published.version,
        "path": published.location,
        "fp32_bytes": published.fp32_bytes,
        "table_bytes": published.table_bytes,
        "max_score_diff": published.max_score_diff,
        "imported": published.compared,
        "planning_seconds": published.planning_seconds,
    }


def print_version(model: str, published: "PublishedVersion") -> None:
    """Print a published version."""
    say(
        f"published {model} version {published.version}: {summary(published.report)}\n"
        f"golden requests within {published.max_score_diff:.2g} of fp32\n"
        f"{published.compared}\nplanned in {published.planning_seconds:.2g} s\n"
        f"{published.location}",
        highlight=False,
        soft_wrap=True,
    )


declare_fields(publish_command, PublishOptions, ChangeOptions, optional=("spec", "weights"))
