"""A model's description: its tables, features, dense inputs and tower."""

import fnmatch
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)
from pydantic.dataclasses import dataclass

from kernels.ids.id_hash import StringHash
from kernels.row_format import RowFormat
from kernels.wording import did_you_mean
from sharded_infer.files.toml_file import toml_text
from sharded_infer.repeats import repeated
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.names import Name, Positive
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.quantization_spec import GateSpec as GateSpec
from sharded_infer.specs.quantization_spec import OutputGate as OutputGate
from sharded_infer.specs.quantization_spec import QuantizationSpec as QuantizationSpec
from sharded_infer.specs.release_spec import ReleaseSpec
from sharded_infer.specs.sequence_input import IDS, LENGTHS, SequenceInput
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.specs.spec_errors import spec_errors
from sharded_infer.specs.table_spec import FeatureSpec as FeatureSpec
from sharded_infer.specs.table_spec import TableSpec as TableSpec

_SHOWN_FEATURES = 8  # in an error
_FP32_NUMBERS = 2**32
_MOST_IDS = 2**47  # a drawn one, of a feature whose ids are the tower's input


_STRICT = ConfigDict(extra="forbid")


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class DenseSpec:
    """The dense inputs: FP32 `[B, width]`, by name."""

    inputs: dict[Name, Positive] = field(default_factory=dict)


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class TowerSpec:
    """The tower: a model's dense layers.

    Attributes:
        architecture: one of the zoo's, with its sizes in `options`; or None.
        program: a `.pt2` file, relative to the spec's file; or None. With neither, the tower's
            module is passed to `publish`.
        precision: of the matrix products; the last layers stay fp32.
        weights: prefix of the tower's parameters in the checkpoint.
        user_inputs: dense inputs, pooled features and sequences that a request's samples share,
            such as the user's. Results that depend only on them are computed once a request.
    """

    architecture: str | None = None
    program: str | None = None
    precision: Precision = Precision.FP32
    outputs: Annotated[tuple[Name, ...], Field(min_length=1)] = ("score",)
    weights: str = "tower."
    options: dict[str, Any] = field(default_factory=dict)
    user_inputs: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _one_tower(self) -> "TowerSpec":
        if self.architecture is not None and self.program is not None:
            raise ValueError("architecture and program exclude each other")
        if len(set(self.outputs)) != len(self.outputs):
            raise ValueError(f"outputs: names repeat in {list(self.outputs)}")
        return self


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class ServingSpec:
    """Batching of requests, and storage of tables, in a server.

    Attributes:
        executor: "inline" runs each request alone; "batched" waits `max_delay_us` for more; "auto"
            runs a request at once if a core is free, and merges those that arrive meanwhile.
        max_batch: samples of a batch of several requests; 8 positions of a sequence count as one.
        max_delay_us: wait of "batched", in microseconds.
        memory: "map" serves tables from the page cache, with pages of any size; "huge" from a copy
            in 2 MiB pages, of the tables' size; "auto" from the page cache in 2 MiB pages if the
            file system has them, else from a copy if there is much memory.
        remote_sums: wire format of shard hosts' sums: "fp32", or "bf16", which rounds those of
            whole rows to 8 significant bits.
        latency_objective_ms: a boundary of the latency histogram, for alert rules.
        non_finite: NaN and infinity in dense inputs and weights: "refuse" the request, or "pass"
            them to the tower.
    """

    executor: Literal["inline", "batched", "auto"] = "auto"
    max_batch: Positive = 1024
    max_delay_us: Annotated[int, Field(ge=0, le=10_000_000)] = 1000
    memory: Literal["auto", "map", "huge"] = "auto"
    remote_sums: Literal["fp32", "bf16"] = "fp32"
    latency_objective_ms: Annotated[float, Field(gt=0, le=600_000)] = 60.0
    non_finite: Literal["refuse", "pass"] = "refuse"


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class ModelSpec:
    """A whole model.

    Attributes:
        name: the model's name in repositories and on the wire.
        tables: their features, in order, are the model's features.
        sequences: by name, of unpooled features of the tables.
        statistics: use of features, by feature, for the planner's cost model.
        release: bounds for promoting a version.
    """

    name: Name
    tables: Annotated[tuple[TableSpec, ...], Field(min_length=1)]
    dense: DenseSpec = field(default_factory=DenseSpec)
    tower: TowerSpec = field(default_factory=TowerSpec)
    quantization: QuantizationSpec = field(default_factory=QuantizationSpec)
    gate: GateSpec = field(default_factory=GateSpec)
    statistics: dict[Name, FeatureStatistics] = field(default_factory=dict)
    serving: ServingSpec = field(default_factory=ServingSpec)
    release: ReleaseSpec = field(default_factory=ReleaseSpec)
    sequences: dict[Name, SequenceSpec] = field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_unique(self) -> "ModelSpec":
        _refuse_repeats("table", [table.name for table in self.tables])
        for table in self.tables:
            _refuse_repeats(f"table {table.name!r}: feature", list(table.features))
        _refuse_repeats("input", [*self.sparse_inputs, *self.sequence_numbers, *self.dense.inputs])
        known = set(self.sparse_inputs)
        if unknown := sorted(set(self.statistics) - known):
            raise ValueError(
                f"statistics: {unknown[0]!r} is not one of the features"
                f"{did_you_mean(unknown[0], known)}"
            )
        for output in self.gate.outputs or ():
            if output not in self.tower.outputs:
                raise ValueError(
                    f"gate.outputs: {output!r} is not one of the outputs "
                    f"{', '.join(self.tower.outputs)}"
                )
        names = [table.name for table in self.tables]
        for pattern in self.quantization.overrides:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"quantization.overrides: {pattern!r} matches no table"
                    f"{did_you_mean(pattern, names)}"
                )
        return self

    @model_validator(mode="after")
    def _sequences_fit(self) -> "ModelSpec":
        owners = [name for one in self.sequences.values() for name in one.members]
        _refuse_repeats("sequences: member", owners)
        known = {name for table in self.tables for name in (table.features or (table.name,))}
        for name, sequence in self.sequences.items():
            if unknown := [one for one in sequence.features if one not in known]:
                raise ValueError(
                    f"sequences: {name}: {unknown[0]!r} is not one of the tables' features"
                    f"{did_you_mean(unknown[0], known)}"
                )
            # A lookup by table name must not find numbers.
            if alike := sorted({*sequence.dense} & {table.name for table in self.tables}):
                raise ValueError(
                    f"sequences: {name}: the dense input {alike[0]!r} has the name of a table"
                )
            others = {*self.dense.inputs, *self.sequence_numbers, *self.sequences} - {name}
            if clash := {name, name + LENGTHS} & {*others, "embeddings"} | (
                {name} & {*self.dense.inputs, *self.sequence_numbers}
            ):
                raise ValueError(f"sequences: {name}: the tower has another input {min(clash)!r}")
            self._check_ids(name, sequence)
        allowed = {*self.sequences, *self.dense.inputs, *(f.name for f in self.features)}
        if unknown := [one for one in self.tower.user_inputs if one not in allowed]:
            raise ValueError(
                f"tower.user_inputs: {unknown[0]!r} is no dense input, pooled feature or sequence"
                f"{did_you_mean(unknown[0], allowed)}"
            )
        return self

    def _check_ids(self, name: str, sequence: SequenceSpec) -> None:
        mapped = {f.name: f.table.name for f in self.sequence_features if f.table.id_map}
        if raw := [feature for feature in sequence.ids if feature in mapped]:
            raise ValueError(
                f"sequences: {name}: ids: expected features whose ids are rows, got {raw[0]!r} of "
                f"table {mapped[raw[0]]!r}, which has an id_map"
            )
        others = {*self.dense.inputs, *self.sequence_numbers, *self.sequences}
        others |= {table.name for table in self.tables}
        if clash := sorted({feature + IDS for feature in sequence.ids} & others):
            raise ValueError(
                f"sequences: {name}: ids: the tower's input {clash[0]!r} has the name of a table "
                "or another input"
            )

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """Pooled features, repeated for each of their tables: the columns of `embeddings`."""
        unpooled = {name for one in self.sequences.values() for name in one.features}
        return tuple(
            FeatureSpec(name, table)
            for table in self.tables
            for name in (table.features or (table.name,))
            if name not in unpooled
        )

    @property
    def sequence_features(self) -> tuple[FeatureSpec, ...]:
        """Every feature of every sequence in its tables, in the order of the sequences' columns.

        Within a sequence, features keep its order, and each one its tables' order.
        """
        return tuple(
            FeatureSpec(name, table, sequence)
            for sequence, spec in self.sequences.items()
            for name in spec.features
            for table in self.tables
            if name in (table.features or (table.name,))
        )

    @property
    def sequence_numbers(self) -> dict[str, int]:
        """The sequences' dense inputs: numbers per id, by name."""
        return {name: width for one in self.sequences.values() for name, width in one.dense.items()}

    @property
    def tower_sequences(self) -> dict[str, SequenceInput]:
        """The tower's input of each sequence; its columns are those of `sequence_features`."""
        features = self.sequence_features
        return {
            name: SequenceInput(
                width=sum(feature.table.dim for feature in features if feature.sequence == name),
                max_length=one.max_length,
                fixed=one.pad_to == "max_length",
                dense=one.dense,
                min_length=one.shortest,
                ids=one.ids,
            )
            for name, one in self.sequences.items()
        }

    @property
    def table_features(self) -> tuple[FeatureSpec, ...]:
        """Every feature that looks rows up: `features`, then `sequence_features`."""
        return self.features + self.sequence_features

    @property
    def input_features(self) -> tuple[FeatureSpec, ...]:
        """The content of jagged inputs: `table_features`, then numbers and ids of sequences.

        The bits of an fp32 number serve as an id of a table of 2^32 rows. Ids that the tower gets
        are those of one more table of their feature.
        """
        if not self.sequences:
            return self.features
        numbers = (
            FeatureSpec(member, TableSpec(member, _FP32_NUMBERS, width), name)
            for name, one in self.sequences.items()
            for member, width in one.dense.items()
        )
        ids = (
            FeatureSpec(member, TableSpec(member + IDS, _MOST_IDS, 1), name, is_tower_input=True)
            for name, sequence in self.sequences.items()
            for member in sequence.ids
        )
        return (*self.table_features, *numbers, *ids)

    @property
    def sparse_inputs(self) -> tuple[str, ...]:
        """Names of the features as clients send them, each once, in their order."""
        return tuple(dict.fromkeys(feature.name for feature in self.table_features))

    @property
    def required_inputs(self) -> frozenset[str]:
        """The sparse inputs that every request must send: required by at least one table."""
        return frozenset(name for table in self.tables for name in table.required_features)

    @property
    def unweighted_inputs(self) -> dict[str, str]:
        """The inputs whose ids have no weights, and why: of sequences, or by the first table."""
        return {
            name: f"it is of sequence {sequence!r}"
            for sequence, spec in self.sequences.items()
            for name in spec.features
        } | {
            feature.name: (
                f"table {feature.table.name!r} was trained without weights (weighted = false)"
            )
            for feature in reversed(self.features)
            if feature.table.weighted is False
        }

    @property
    def raw_tables(self) -> tuple[TableSpec, ...]:
        """The tables whose requests have raw ids, which are mapped or hashed."""
        return tuple(table for table in self.tables if table.id_map is not None)

    @property
    def mapped_tables(self) -> tuple[TableSpec, ...]:
        """The tables whose raw ids an index maps to rows."""
        return tuple(
            table
            for table in self.raw_tables
            if table.id_map is not None and table.id_map.hashed is None
        )

    @property
    def ordered_tables(self) -> tuple[TableSpec, ...]:
        """The tables whose rows are not in id order."""
        return tuple(table for table in self.tables if table.ordered)

    @property
    def ids_are_rows(self) -> bool:
        """True if each id of a request is its row, in all tables."""
        stepped = any(table.id_steps for table in self.tables)
        return not (self.raw_tables or self.ordered_tables or stepped)

    @property
    def raw_inputs(self) -> frozenset[str]:
        """The sparse inputs with raw ids: at least one of their tables maps or hashes them."""
        return frozenset(f.name for f in self.table_features if f.table.id_map is not None)

    @property
    def string_inputs(self) -> dict[str, tuple[StringHash, int]]:
        """Sparse inputs with string ids: their hash function and seed, common to their tables."""
        found: dict[str, set[tuple[StringHash, int] | None]] = {}
        for feature in self.table_features:
            said = feature.table.id_map
            hashes = found.setdefault(feature.name, set())
            if said is None or said.strings is None:
                hashes.add(None)
            else:
                hashes.add((StringHash(said.strings), said.seed))
        return {
            name: one for name, (one, *others) in found.items() if one is not None and not others
        }

    @property
    def embedding_width(self) -> int:
        """Width of the tower's `embeddings` input: the sum of the features' dims."""
        return sum(feature.table.dim for feature in self.features)

    @property
    def embedding_text(self) -> str:
        """The features of `embeddings` with their tables and dims, for messages."""
        features = self.features
        shown = [
            f"{f.name} {f.table.dim}"
            if f.name == f.table.name
            else f"{f.name} of table {f.table.name} {f.table.dim}"
            for f in features[:_SHOWN_FEATURES]
        ]
        more = len(features) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def to_toml(self) -> str:
        """The text of a `model.toml` that `load_spec` reads back as this spec, without defaults.

        >>> print(ModelSpec("clicks", (TableSpec("item", rows=100, dim=8),)).to_toml())
        name = "clicks"
        <BLANKLINE>
        [[tables]]
        name = "item"
        rows = 100
        dim = 8
        <BLANKLINE>
        """
        adapter = TypeAdapter(ModelSpec)
        fields: dict[str, Any] = adapter.dump_python(
            self, mode="json", exclude_none=True, exclude_defaults=True
        )
        if self.tower.architecture is not None and self.tower.options:
            # In a file, the architecture's sizes are beside our own keys.
            options = fields["tower"].pop("options")
            if set(options) & set(TowerSpec.__dataclass_fields__):
                options = {"options": options}
            fields["tower"] |= options
        return toml_text(fields)

    def fixed_format(self, table: TableSpec) -> tuple[RowFormat, str] | None:
        """The format that the spec gives a table, and the key that gives it; or None."""
        if table.format is not None:
            return table.format, "the table's own format in the spec"
        for pattern, row_format in self.quantization.overrides.items():
            if fnmatch.fnmatchcase(table.name, pattern):
                return row_format, f"the spec's override {pattern!r}"
        return None

    def row_format(self, table: TableSpec) -> RowFormat:
        """A table's own, overriding or default format; a budget determines it later."""
        fixed = self.fixed_format(table)
        return (self.default_format(table) if fixed is None else fixed)[0]

    def default_format(self, table: TableSpec) -> tuple[RowFormat, str]:
        """The format, and its reason, of a table without one in the spec or a budget.

        If the scale and bias of a narrow row take more than its elements save, it is fp16.
        """
        default = self.quantization.format
        if is_too_narrow(table.dim, default):
            return RowFormat.FP16, (
                f"{default}, the spec's default, would take {default.row_bytes(table.dim)} bytes "
                f"for a row of dim {table.dim}, not {RowFormat.FP16.row_bytes(table.dim)}"
            )
        return default, "the spec's default"


def is_too_narrow(dim: int, row_format: RowFormat) -> bool:
    """True if a quantized row of `dim` elements is no smaller than an fp16 one."""
    if not row_format.header_bytes:
        return False
    return RowFormat.FP16.row_bytes(dim) <= row_format.row_bytes(dim)


def _refuse_repeats(kind: str, names: list[str]) -> None:
    if twice := sorted(repeated(names)):
        raise ValueError(f"{kind} {', '.join(map(repr, twice))} is defined more than once")
