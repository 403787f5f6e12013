"""Publishes a model: options, job and command."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.wording import counted
from serving.commands.console import ERRORS, JsonOption, print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.models.publish_changes import ChangeOptions, publish_changes
from serving.commands.models.publish_module import ModuleOptions, publish_module
from serving.commands.models.quantization import (
    CalibrationOption,
    ErrorBudgetOption,
    MemoryBudgetOption,
    SamplesOption,
    SpecOption,
    WeightsOption,
    counted_statistics,
    id_map_sources,
    read_trained,
    summary,
    with_budget,
)
from serving.commands.options.option_fields import declare_fields
from serving.commands.options.version_options import RepositoryOption, SignKeyOption
from sharded_infer.artifacts.golden import DEFAULT_SAMPLES
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError
from sharded_infer.inputs.columns import Columns
from sharded_infer.progress import Progress
from sharded_infer.repositories.signatures.keys import SigningKey, read_signing_keys
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.record import is_record
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.order_rows import OrderRows
from sharded_infer.specs.spec_file import load_spec

if TYPE_CHECKING:
    from sharded_infer.publishing.part_publication import PublishedPart
    from sharded_infer.publishing.publication import PublishedVersion

_PART = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options of a command that publishes, one a field."""

    spec: SpecOption
    weights: WeightsOption
    repository: RepositoryOption
    topology: Annotated[
        list[str] | None,
        typer.Option(help="Layout to plan for, such as cpu:2 or cpu:2x16GB; may be repeated."),
    ] = None
    memory_budget: MemoryBudgetOption = None
    error_budget: ErrorBudgetOption = None
    samples: SamplesOption = None
    calibration: CalibrationOption = None
    golden: Annotated[
        Path | None,
        typer.Option(
            help="Samples that become the golden requests, whose scores every server compares as "
            "it loads the version: as --samples, or a recording; default: random ones, or the "
            "first of --calibration."
        ),
    ] = None
    golden_rows: Annotated[
        int | None,
        typer.Option(
            help="Samples to choose of a recording --golden, evenly over sizes of requests and "
            "over those with and without unknown ids; default: 64.",
            min=1,
        ),
    ] = None
    note: Annotated[str | None, typer.Option(help="A note, kept with the version.")] = None
    run_id: Annotated[
        str | None, typer.Option(help="The training run's id in a tracker, kept with the version.")
    ] = None
    source_revision: Annotated[
        str | None,
        typer.Option(help="Revision of the code that trained the model, kept with the version."),
    ] = None
    sign_key: SignKeyOption = None
    order_rows: Annotated[
        OrderRows,
        typer.Option(
            help="frequency: the rows that are used most come first, of each table of which an id "
            "map or --samples says how often. Without an id map it takes 6 bits a row more."
        ),
    ] = OrderRows.AS_TRAINED

    @property
    def topologies(self) -> tuple[str, ...]:
        """Layouts to plan for."""
        return tuple(self.topology or ("cpu:1",))

    def resolved(self) -> "PublishOptions":
        """The options with absolute paths of the files that parts are made from."""
        named = [
            str(Path(one).resolve()) if one.endswith(".toml") else one for one in self.topologies
        ]
        return replace(
            self,
            spec=self.spec.resolve(),
            weights=self.weights.resolve(),
            topology=named,
            samples=None if self.samples is None else self.samples.resolve(),
            # Of the step that joins them.
            golden=None,
            golden_rows=None,
        )

    def golden_samples(self, spec: ModelSpec) -> Columns | None:
        """Samples of --golden; InputError as `read_samples`."""
        if self.golden is None:
            if self.golden_rows is not None:
                raise InputError("--golden-rows: expected --golden, to choose from")
            return None
        rows = self.golden_rows
        if rows is None and is_record(self.golden):
            rows = DEFAULT_SAMPLES
        return read_samples(self.golden, strings=spec.string_inputs, model=spec.name, rows=rows)


@dataclass(frozen=True, slots=True)
class PublishJob:
    """A model to publish: its spec with the command line's budget, and what samples say of it."""

    options: PublishOptions
    spec: ModelSpec
    statistics: Mapping[str, FeatureStatistics] | None
    golden: Columns | None

    @classmethod
    def read(cls, options: PublishOptions) -> "PublishJob":
        """Read spec and samples; raises as `load_spec`, `with_budget` and `counted_statistics`."""
        spec = with_budget(load_spec(options.spec), options.memory_budget, options.error_budget)
        statistics = counted_statistics(spec, options.samples, options.spec.parent)
        return cls(options, spec, statistics, options.golden_samples(spec))

    def read_trained(self) -> tuple[Any, Any, Any]:
        """Read as `read_trained`, and print the input order of a tower with unnamed inputs."""
        options = self.options
        trained = read_trained(self.spec, options.weights, options.spec.parent, options.calibration)
        # An attribute of `ProgramTower`; its module takes torch to import.
        if not getattr(trained[1], "names_inputs", True):
            ERRORS.print(
                f"{self.spec.tower.program} does not say its inputs' names: they are taken in the "
                f"order {', '.join((*self.spec.dense.inputs, 'embeddings'))}",
                soft_wrap=True,
            )
        return trained

    def store_part(self, part: int, parts: int, progress: Progress) -> "PublishedPart":
        """Encode and store one part of a checkpoint; see `publish_part`."""
        options, weights = self.options, self.options.weights
        source, *_ = read_trained(self.spec, weights, weights.parent, None, with_tower=False)
        publish_part = load_by_name("sharded_infer.publishing.part_publication:publish_part")
        stored: PublishedPart = publish_part(
            self.spec,
            source,
            options.repository,
            part=part,
            parts=parts,
            statistics=self.statistics,
            # The rows of unmapped tables keep their order in any plan.
            topologies=options.topologies if self.spec.mapped_tables else ("cpu:1",),
            progress=progress,
            **self._row_order(),
        )
        return stored

    def publish(
        self,
        trained: tuple[Any, Any, Any],
        *,
        keys: Sequence[SigningKey],
        parts: int | None,
        progress: Progress,
    ) -> "PublishedVersion":
        """Publish the trained model; `parts` None: the tables are encoded here, not joined."""
        options = self.options
        source, tower, measured = trained
        published: PublishedVersion = load_by_name("sharded_infer.publishing.publication:publish")(
            self.spec,
            source,
            tower,
            options.repository,
            topologies=options.topologies,
            statistics=self.statistics,
            samples=self.golden,
            calibration=measured,
            parts=parts,
            note=options.note,
            run_id=options.run_id,
            source_revision=options.source_revision,
            sign_keys=keys,
            progress=progress,
            **self._row_order(),
        )
        return published

    def _row_order(self) -> dict[str, Any]:
        """Id maps that the spec names, the order of rows, and the samples' frequencies of rows."""
        options, spec = self.options, self.spec
        id_maps, frequencies = id_map_sources(spec, options.spec.parent), None
        if options.order_rows is OrderRows.FREQUENCY and options.samples is not None:
            samples = read_samples(options.samples, strings=spec.string_inputs, model=spec.name)
            module = "sharded_infer.publishing.sampled_ids"
            frequencies = load_by_name(f"{module}:sampled_frequencies")(spec, samples, id_maps)
            id_maps = load_by_name(f"{module}:with_frequencies")(spec, samples, id_maps)
        return {"id_maps": id_maps, "order_rows": options.order_rows, "frequencies": frequencies}


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

    With --module a trained nn.Module is published by itself: its embeddings become tables, the
    rest the tower, and the version's scores are compared with the module's.

    With --changed, --base or --follow changed rows alone are published, in front of a version's:
    seconds instead of minutes. `repo compact` makes such a version whole.
    """
    changes = ChangeOptions(
        **{field.name: values.pop(field.name) for field in fields(ChangeOptions)}
    )
    module = ModuleOptions(
        **{field.name: values.pop(field.name) for field in fields(ModuleOptions)}
    )
    if module.module is not None:
        if changes.are_given or part is not None or join is not None:
            raise InputError("--module is published whole, without --changed, --part and --join")
        publish_module(module, values, print_version, as_json=as_json)
        return
    if module.example is not None or module.dry_run:
        option = "--dry-run" if module.example is None else f"--example {module.example}"
        raise InputError(f"{option}: expected --module, whose call it describes")
    if changes.are_given:
        if part is not None or join is not None:
            raise InputError("--part and --join: changed rows are published by one process")
        publish_changes(changes, values, as_json=as_json)
        return
    if missing := [name for name in ("spec", "weights") if values[name] is None]:
        raise InputError(
            f"--{missing[0]}: expected it, or --module to publish a trained module, or --changed "
            "to publish changed rows of a version alone"
        )
    job = PublishJob.read(PublishOptions(**values))
    if part is not None:
        match = _PART.fullmatch(part)
        if match is None:
            raise InputError(f"--part: expected I/N, such as 2/4, got {part!r:.40}")
        number, parts = int(match[1]), int(match[2])
        _check_part_options(job.options, join)
        with progress_bars() as progress:
            stored = job.store_part(number, parts, progress)
        model, part_fields = job.spec.name, asdict(stored)
        print_result(
            {"model": model, "path": part_fields.pop("location"), **part_fields},
            f"stored part {number}/{parts} of {model}: {counted(stored.rows, 'row', ',')} of "
            f"{counted(len(stored.files), 'table file')}, {size_text(stored.fp32_bytes)} -> "
            f"{size_text(stored.table_bytes)}\n{stored.location}",
            as_json=as_json,
        )
        return
    keys = read_signing_keys(job.options.sign_key or ())
    trained = job.read_trained()
    with progress_bars() as progress:
        published = job.publish(trained, keys=keys, parts=join, progress=progress)
    print_version(job.spec.name, published, {}, as_json=as_json)


def _check_part_options(options: PublishOptions, join: int | None) -> None:
    values = {"join": join, **asdict(options)}
    for name in ("calibration", "golden", "note", "run_id", "source_revision", "sign_key", "join"):
        if values[name]:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} is for the step that joins the parts, not for --part")


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


declare_fields(
    publish_command, PublishOptions, ModuleOptions, ChangeOptions, optional=("spec", "weights")
)
