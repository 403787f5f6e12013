from typing import NamedTuple

from kernels.row_format import RowFormat
from sharded_infer.lookups.columns import ColumnRun, column_runs, first_columns, split_features
from sharded_infer.planning.plan import StoredTable
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

SPEC = ModelSpec(
    "columns",
    (
        TableSpec("ads", rows=9, dim=8, features=("shown", "clicked")),
        TableSpec("country", rows=5, dim=3, pooling="mean"),
        TableSpec("page", rows=7, dim=4),
    ),
)


class Part(NamedTuple):
    table: StoredTable
    holds_all_rows: bool


def part(name: str, *, whole: bool) -> Part:
    return Part(StoredTable(name, 9, 8, RowFormat.INT8), whole)


def test_columns_follow_the_features_of_the_spec() -> None:
    assert first_columns(SPEC) == [0, 8, 16, 19, 23]


def test_features_are_split_where_a_part_lacks_rows() -> None:
    parts = [part("ads", whole=False), part("page", whole=True), part("country", whole=False)]
    split = split_features(SPEC, [*parts, part("country", whole=True)])
    assert split.features == (0, 1, 2)
    assert split.columns == ((0, 8), (8, 8), (16, 3))
    assert split.means == (2,)
    some = split.among({1, 3})
    assert (some.features, some.columns, some.means) == ((1,), ((8, 8),), ())


def test_neighbouring_columns_join() -> None:
    assert column_runs([(4, 2, False), (6, 3, False), (12, 1, False)]) == (
        ColumnRun(4, 0, 5, added=False),
        ColumnRun(12, 5, 1, added=False),
    )


def test_parts_of_the_same_columns_and_columns_that_are_added_stay_apart() -> None:
    assert column_runs([(0, 4, True), (0, 4, True), (4, 2, False)]) == (
        ColumnRun(0, 0, 4, added=True),
        ColumnRun(0, 4, 4, added=True),
        ColumnRun(4, 8, 2, added=False),
    )
