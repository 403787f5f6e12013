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
from serving.commands.options.key_options import SignKeyOption
from serving.commands.options.version_options import RepositoryOption
from sharded_infer.progress import Progress
from sharded_infer.repositories.signatures.keys import SigningKey, read_signing_keys
from sharded_infer.samples.file import read_samples
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.order_rows import OrderRows
from sharded_infer.specs.spec_file import load_spec

if TYPE_CHECKING:
    from sharded_infer.importing.id_maps.id_map_source import IdMapSource
    from sharded_infer.publishing.publication import PublishedVersion

TopologyOption = Annotated[
    list[str] | None,
    typer.Option(help="Layout to plan for, such as cpu:2 or cpu:2x16GB; may be repeated."),
]
NoteOption = Annotated[str | None, typer.Option(help="A note, kept with the version.")]
RunIdOption = Annotated[
    str | None, typer.Option(help="The training run's id in a tracker, kept with the version.")
]
SourceRevisionOption = Annotated[
    str | None,
    typer.Option(help="Revision of the code that trained the model, kept with the version."),
]


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options of a command that publishes, one a field."""

    spec: SpecOption
    weights: WeightsOption
    repository: RepositoryOption
    topology: TopologyOption = None
    memory_budget: MemoryBudgetOption = None
    error_budget: ErrorBudgetOption = None
    samples: SamplesOption = None
    calibration: CalibrationOption = None
    note: NoteOption = None
    run_id: RunIdOption = None
    source_revision: SourceRevisionOption = None
    sign_key: SignKeyOption = None

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

    def described(self) -> ModelSpec:
        """The spec with the budget of the command line; raises as `load_spec` and `with_budget`."""
        return with_budget(load_spec(self.spec), self.memory_budget, self.error_budget)

    def statistics(self, described: ModelSpec) -> Mapping[str, FeatureStatistics] | None:
        """How the samples use the features; None without samples."""
        return counted_statistics(described, self.samples, self.spec.parent)

    def read(self, described: ModelSpec) -> tuple[Any, Any, Any]:
        """Read as `read_trained`, and print the input order of a tower with unnamed inputs."""
        trained = read_trained(described, self.weights, self.spec.parent, self.calibration)
        _say_input_order(described, trained[1])
        return trained

    def signing_keys(self) -> Sequence[SigningKey]:
        """Keys that sign the version; raises InputError as `read_signing_keys`."""
        return read_signing_keys(self.sign_key or ())

    def id_maps(self, described: ModelSpec, order_rows: OrderRows) -> Mapping[str, "IdMapSource"]:
        """Id maps that the spec names, by table, with frequencies if these order rows."""
        id_maps = id_map_sources(described, self.spec.parent)
        if order_rows is not OrderRows.FREQUENCY or self.samples is None:
            return id_maps
        samples = read_samples(self.samples, strings=described.string_inputs)
        counted: Mapping[str, IdMapSource] = load_by_name(
            "sharded_infer.publishing.sampled_ids:with_frequencies"
        )(described, samples, id_maps)
        return counted

    def frequencies(self, described: ModelSpec, order_rows: OrderRows) -> Mapping[str, Any] | None:
        """Counts of the rows that the samples use in tables without id maps; None if not needed."""
        if order_rows is not OrderRows.FREQUENCY or self.samples is None:
            return None
        samples = read_samples(self.samples, strings=described.string_inputs)
        counted: Mapping[str, Any] = load_by_name(
            "sharded_infer.publishing.sampled_ids:sampled_frequencies"
        )(described, samples, id_map_sources(described, self.spec.parent))
        return counted

    def publish(
        self,
        described: ModelSpec,
        statistics: Mapping[str, FeatureStatistics] | None,
        trained: tuple[Any, Any, Any],
        *,
        keys: Sequence[SigningKey],
        parts: int | None,
        order_rows: OrderRows = OrderRows.AS_TRAINED,
        progress: Progress,
    ) -> "PublishedVersion":
        """Publish the trained model.

        Args:
            keys: sign the version.
            parts: number of parts to join; None: the tables are encoded here.
            order_rows: by frequency, with that of the samples where no id map has one.
        """
        source, tower, measured = trained
        published: PublishedVersion = load_by_name("sharded_infer.publishing.publication:publish")(
            described,
            source,
            tower,
            self.repository,
            topologies=self.topologies,
            statistics=statistics,
            id_maps=self.id_maps(described, order_rows),
            order_rows=order_rows,
            frequencies=self.frequencies(described, order_rows),
            calibration=measured,
            parts=parts,
            note=self.note,
            run_id=self.run_id,
            source_revision=self.source_revision,
            sign_keys=keys,
            progress=progress,
        )
        return published


def _say_input_order(spec: ModelSpec, tower: object) -> None:
    # An attribute of `ProgramTower`; its module takes torch to import.
    if getattr(tower, "names_inputs", True):
        return
    ERRORS.print(
        f"{spec.tower.program} does not say its inputs' names: they are taken in the "
        f"order {', '.join((*spec.dense.inputs, 'embeddings'))}",
        soft_wrap=True,
    )
