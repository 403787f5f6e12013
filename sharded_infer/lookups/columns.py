"""Positions of features' columns in a tower's embeddings, and features split by rows."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sharded_infer.planning.plan import StoredTable
from sharded_infer.specs.model_spec import ModelSpec


class PlacedPart(Protocol):
    """A part of a table on a rank."""

    @property
    def table(self) -> StoredTable:
        """The whole table."""
        ...

    @property
    def holds_all_rows(self) -> bool:
        """True if the part has every row of the table."""
        ...


class ColumnRun(NamedTuple):
    """Adjacent columns of a lookup's output with adjacent destinations.

    Attributes:
        column: first column in the embeddings.
        source: first column in the lookup's output.
        added: add to the embeddings instead of overwriting them.
    """

    column: int
    source: int
    width: int
    added: bool


@dataclass(frozen=True, slots=True)
class SplitFeatures:
    """Features whose rows are split across ranks.

    Attributes:
        features: positions in the spec, ascending.
        columns: (first column, width) of each feature in the embeddings.
        means: those of `features` with mean pooling; the total of all parts is divided.
    """

    features: tuple[int, ...]
    columns: tuple[tuple[int, int], ...]
    means: tuple[int, ...]

    def among(self, features: Collection[int]) -> "SplitFeatures":
        """The subset among `features`."""
        kept = [
            (feature, columns)
            for feature, columns in zip(self.features, self.columns, strict=True)
            if feature in features
        ]
        return SplitFeatures(
            tuple(feature for feature, _ in kept),
            tuple(columns for _, columns in kept),
            tuple(feature for feature in self.means if feature in features),
        )


def first_columns(spec: ModelSpec) -> list[int]:
    """First column of each feature in the embeddings, then the end of the last."""
    starts = [0]
    for feature in spec.features:
        starts.append(starts[-1] + feature.table.dim)
    return starts


def split_features(spec: ModelSpec, placed: Iterable[PlacedPart]) -> SplitFeatures:
    """Features whose rows are split across ranks, from every part of every table."""
    names = {part.table.name for part in placed if not part.holds_all_rows}
    features = spec.table_features
    # Those of sequences are in no column of the embeddings.
    starts = [*first_columns(spec), *(0 for _ in spec.sequence_features)]
    found = [i for i, feature in enumerate(features) if feature.table.name in names]
    return SplitFeatures(
        features=tuple(found),
        columns=tuple((starts[i], features[i].table.dim) for i in found),
        means=tuple(
            i for i in found if features[i].table.pooling == "mean" and not features[i].sequence
        ),
    )


def column_runs(parts: Iterable[tuple[int, int, bool]]) -> tuple[ColumnRun, ...]:
    """Joins adjacent columns, so that one copy moves them.

    `parts` of an output, in order: (first column in the embeddings, width, whether to add).
    """
    runs: list[ColumnRun] = []
    source = 0
    for column, width, added in parts:
        last = runs[-1] if runs else None
        # Row parts of one feature have the same destination, so they are not adjacent.
        if last is not None and last.added == added and last.column + last.width == column:
            runs[-1] = last._replace(width=last.width + width)
        else:
            runs.append(ColumnRun(column, source, width, added))
        source += width
    return tuple(runs)
