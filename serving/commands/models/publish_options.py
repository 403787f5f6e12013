"""Options of commands that publish a model, and what they read and publish."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.commands.console import ERRORS
from serving.commands.lazy_group import load_by_name
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
    with_budget,
)
from serving.commands.options.version_options import RepositoryOption, SignKeyOption
from sharded_infer.progress import Progress
from sharded_infer.repositories.signatures.keys import SigningKey
from sharded_infer.samples.file import read_samples
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.order_rows import OrderRows
from sharded_infer.specs.spec_file import load_spec

if TYPE_CHECKING:
    from sharded_infer.publishing.part_publication import PublishedPart
    from sharded_infer.publishing.publication import PublishedVersion


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
        )


@dataclass(frozen=True, slots=True)
class PublishJob:
    """A model to publish: its spec with the command line's budget, and the use of its features."""

    options: PublishOptions
    spec: ModelSpec
    statistics: Mapping[str, FeatureStatistics] | None

    @classmethod
    def read(cls, options: PublishOptions) -> "PublishJob":
        """Read spec and samples; raises as `load_spec`, `with_budget` and `counted_statistics`."""
        spec = with_budget(load_spec(options.spec), options.memory_budget, options.error_budget)
        return cls(options, spec, counted_statistics(spec, options.samples, options.spec.parent))

    def read_trained(self) -> tuple[Any, Any, Any]:
        """Read as `read_trained`, and print the input order of a tower with unnamed inputs."""
        options = self.options
        trained = read_trained(self.spec, options.weights, options.spec.parent, options.calibration)
        _say_input_order(self.spec, trained[1])
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
        """Publish the trained model, signed by `keys`.

        `parts` is the number of parts to join; None: the tables are encoded here.
        """
        options = self.options
        source, tower, measured = trained
        published: PublishedVersion = load_by_name("sharded_infer.publishing.publication:publish")(
            self.spec,
            source,
            tower,
            options.repository,
            topologies=options.topologies,
            statistics=self.statistics,
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
            samples = read_samples(options.samples, strings=spec.string_inputs)
            module = "sharded_infer.publishing.sampled_ids"
            frequencies = load_by_name(f"{module}:sampled_frequencies")(spec, samples, id_maps)
            id_maps = load_by_name(f"{module}:with_frequencies")(spec, samples, id_maps)
        return {"id_maps": id_maps, "order_rows": options.order_rows, "frequencies": frequencies}


def _say_input_order(spec: ModelSpec, tower: object) -> None:
    # An attribute of `ProgramTower`; its module takes torch to import.
    if getattr(tower, "names_inputs", True):
        return
    ERRORS.print(
        f"{spec.tower.program} does not say its inputs' names: they are taken in the "
        f"order {', '.join((*spec.dense.inputs, 'embeddings'))}",
        soft_wrap=True,
    )
