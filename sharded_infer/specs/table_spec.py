"""A table of a model, and its features."""

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from kernels.row_format import RowFormat
from sharded_infer.specs.default_row import DefaultRow
from sharded_infer.specs.id_map_spec import MOST_MAPPED_ROWS, HashedRows, IdMapSpec, SharedRows
from sharded_infer.specs.id_steps import IdStep, IdSteps, check_steps
from sharded_infer.specs.names import Name
from sharded_infer.specs.spec_errors import spec_errors


def _required(value: Any) -> Any:
    # Defaults are omitted: older readers do not know such a field.
    if value is None or value is False or value in ([], ()):
        return None
    names = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    if value is not True and not names:
        raise ValueError(f"expected true, false or names of features, got {value!r}")
    return tuple(value) if names else value


def _pooling(value: Any) -> Any:
    if value == "none":
        raise ValueError(
            'expected "sum" or "mean", got "none": features of [sequences] are not pooled; name '
            "this table's there"
        )
    return value


_STRICT = ConfigDict(extra="forbid")


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class TableSpec:
    """One embedding matrix `[rows, dim]` and the features that look rows up in it.

    Attributes:
        pooling: "sum" or "mean"; None takes the trained module's, or "sum" without a module. A
            published spec has one. Weights of ids multiply their rows; a mean divides by the number
            of ids.
        features: of the table, possibly shared with other tables. None takes those of the trained
            module, or the table's own name.
        weights: the weight's key in the checkpoint; None tries the table's usual names.
        format: None takes the model's default.
        out_of_range: policy for an id outside `[0, rows)`.
        padding_idx: an id in `[0, rows)` that adds nothing and does not count in a mean, as in
            `nn.EmbeddingBag`.
        required: features, or True for all, that every request must send, possibly with empty bags;
            None: a missing feature is an empty bag.
        default_row: "zeros" or `dim` numbers, which replace rows that no shard host can look up;
            None: requests that need them fail.
        id_map: maps raw ids of requests to rows; None: requests have rows.
        weighted: False: the trained model has no weights, and requests with weights other than 1
            are refused; None takes what the trained module does with them, or allows them.
        ordered: publishing stored its rows in another order, with a file of each row's place. None:
            ids are rows, or raw.
        id_steps: by feature of the table, arithmetic that turns its ids as sent into rows, before
            `out_of_range` and `padding_idx`. Without steps, ids are rows, or raw.
    """

    name: Name
    rows: Annotated[int, Field(ge=1, lt=2**48)]
    dim: Annotated[int, Field(ge=1, le=8192)]
    pooling: Annotated[Literal["sum", "mean"] | None, BeforeValidator(_pooling)] = None
    features: tuple[Name, ...] = ()
    weights: str | None = None
    format: RowFormat | None = None
    out_of_range: Literal["error", "ignore", "modulo"] = "error"
    padding_idx: Annotated[int, Field(strict=True)] | None = None
    required: Annotated[Literal[True] | tuple[Name, ...] | None, BeforeValidator(_required)] = None
    default_row: DefaultRow = None
    id_map: IdMapSpec | None = None
    weighted: Annotated[bool, Field(strict=True)] | None = None
    ordered: Literal[True] | None = None
    # A dict has no hash.
    id_steps: dict[Name, IdSteps] = dataclasses.field(default_factory=dict, hash=False)

    @model_validator(mode="after")
    def _padding_is_a_row(self) -> "TableSpec":
        if self.padding_idx is not None and not 0 <= self.padding_idx < self.rows:
            raise ValueError(
                f"padding_idx: expected a row, 0 to {self.rows - 1}, got {self.padding_idx}"
            )
        return self

    @model_validator(mode="after")
    def _required_are_features(self) -> "TableSpec":
        names = self.features or (self.name,)
        if unknown := sorted(set(self.required_features) - set(names)):
            raise ValueError(
                f"required: {unknown[0]!r} is not one of the table's features: {', '.join(names)}"
            )
        return self

    @model_validator(mode="after")
    def _default_row_has_all_columns(self) -> "TableSpec":
        row = self.default_row
        if isinstance(row, tuple) and len(row) != self.dim:
            raise ValueError(f'default_row: expected "zeros" or {self.dim} numbers, got {len(row)}')
        return self

    @model_validator(mode="after")
    def _id_map_fits(self) -> "TableSpec":
        if self.id_map is None:
            return self
        if self.id_map.hashed is None and self.rows > MOST_MAPPED_ROWS:
            raise ValueError(
                f"id_map: expected a table of at most {MOST_MAPPED_ROWS} rows, got {self.rows}"
            )
        if self.out_of_range != "error":
            raise ValueError("out_of_range: expected none beside id_map, whose unknown says it")
        if self.padding_idx is not None:
            raise ValueError(
                "padding_idx: expected none beside id_map"
                + (': leave the id out of the map, with "zero"' if not self.id_map.hashed else "")
            )
        self._check_unknown_rows(self.id_map)
        return self

    @model_validator(mode="after")
    def _ordered_ids_are_rows(self) -> "TableSpec":
        if self.ordered and self.id_map is not None:
            raise ValueError("ordered: expected none beside id_map, which says where rows lie")
        if self.ordered and self.rows > MOST_MAPPED_ROWS:
            raise ValueError(
                f"ordered: expected a table of at most {MOST_MAPPED_ROWS} rows, got {self.rows}"
            )
        return self

    @model_validator(mode="after")
    def _id_steps_fit(self) -> "TableSpec":
        if self.id_steps and self.id_map is not None:
            raise ValueError("id_steps: expected none beside id_map, which maps ids as sent")
        names = self.features or (self.name,)
        if unknown := sorted(set(self.id_steps) - set(names)):
            raise ValueError(
                f"id_steps: {unknown[0]!r} is not one of the table's features: {', '.join(names)}"
            )
        for feature, steps in self.id_steps.items():
            check_steps(feature, steps)
        return self

    def _check_unknown_rows(self, id_map: IdMapSpec) -> None:
        unknown = id_map.unknown
        rows = unknown.rows if isinstance(unknown, SharedRows) else ()
        if outside := [row for row in rows if row >= self.rows]:
            raise ValueError(
                f"id_map.unknown.rows: expected rows, 0 to {self.rows - 1}, got {outside[0]}"
            )
        if isinstance(unknown, HashedRows):
            size = self.rows // unknown.buckets
            if unknown.rows != self.rows or self.rows % unknown.buckets:
                raise ValueError(
                    f"id_map.unknown: expected the table's {self.rows} rows in equal buckets, got "
                    f"{unknown.rows} in {unknown.buckets}"
                )
            if unknown.reserved is not None and not 1 <= unknown.reserved <= size:
                raise ValueError(
                    f"id_map.unknown.reserved: expected 1 to {size}, got {unknown.reserved}"
                )
        if id_map.partition is not None:
            smallest = id_map.partition.smallest(self.rows)
            if smallest < 1:
                raise ValueError(
                    f"id_map.partition: expected parts of the table's {self.rows} rows"
                )
            if isinstance(unknown, HashedRows) or max(rows, default=0) >= smallest:
                raise ValueError(
                    "id_map.partition: expected rows of unknown ids in each part, of which the "
                    f"smallest has {smallest}"
                )

    @property
    def required_features(self) -> tuple[str, ...]:
        """Its features that every request must send."""
        if self.required is True:
            return self.features or (self.name,)
        return self.required or ()


# Of validated tables, which pydantic would validate again for each feature.
@dataclasses.dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A feature in one of its tables: columns of the tower's `embeddings`, or of `sequence`.

    `name`, its input's name on the wire, is unique within the table. Without `sequence` its bags
    are pooled. With `is_tower_input` its ids are not looked up, and may be any 64-bit numbers.
    """

    name: str
    table: TableSpec
    sequence: str | None = None
    is_tower_input: bool = False

    @property
    def id_steps(self) -> tuple[IdStep, ...]:
        """The steps from its ids, as sent, to rows of this table."""
        return self.table.id_steps.get(self.name, ())
