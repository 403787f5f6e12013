"""Positions of features' columns in a tower's embeddings, and features split by rows."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sharded_infer.specs.model_spec import ModelSpec


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


def first_columns(spec: ModelSpec) -> list[int]:
    """First column of each feature in the embeddings, then the end of the last."""
    starts = [0]
    for feature in spec.features:
        starts.append(starts[-1] + feature.table.dim)
    return starts


def split_features(spec: ModelSpec, tables: Collection[str]) -> SplitFeatures:
    """Features of the tables whose rows are split across ranks."""
    features = spec.table_features
    # Those of sequences are in no column of the embeddings.
    starts = [*first_columns(spec), *(0 for _ in spec.sequence_features)]
    split = [i for i, feature in enumerate(features) if feature.table.name in tables]
    return SplitFeatures(
        features=tuple(split),
        columns=tuple((starts[i], features[i].table.dim) for i in split),
        means=tuple(
            i for i in split if features[i].table.pooling == "mean" and not features[i].sequence
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
