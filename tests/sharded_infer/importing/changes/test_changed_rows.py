from typing import Any

import numpy as np
import pytest
import torch

from kernels.row_format import RowFormat
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.changed_rows import (
    ChangedRows,
    Changes,
    check_changes,
    joined,
    last_of_each,
    merged,
)

Plain = tuple[dict[int, tuple[float, ...]], set[int]]


def ids_of(*ids: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(ids, np.int64)


def rows_of(ids: list[int], number: float, removed: tuple[int, ...] = ()) -> ChangedRows:
    return ChangedRows(
        ids_of(*ids), torch.full((len(ids), 2), float(number)), removed=ids_of(*removed)
    )


def plain(changed: ChangedRows) -> Plain:
    rows = [] if changed.rows is None else changed.rows.tolist()
    assert len(set(changed.ids.tolist())) == len(changed.ids) == len(rows)
    return dict(zip(changed.ids.tolist(), map(tuple, rows), strict=True)), set(
        changed.removed.tolist()
    )


def test_merged_changes_do_what_they_do_one_after_the_other() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        expected: Plain = ({}, set())
        changes: Changes = {}
        for step in range(4):
            ids = rng.permutation(12)
            count, gone = rng.integers(0, 7, 2)
            later = rows_of(ids[:count].tolist(), step, tuple(ids[count : count + gone].tolist()))
            changes = merged(changes, check_changes({"item": later}, "here"))
            rows, removed = plain(later)
            kept = {key: row for key, row in expected[0].items() if key not in removed}
            expected = (kept | rows, (expected[1] - rows.keys()) | removed)
        assert plain(check_changes(changes, "merged")["item"]) == expected


def test_tables_of_only_one_change_are_taken_over() -> None:
    one, other = rows_of([1], 1.0), rows_of([2], 2.0)
    assert merged({"user": one}, {"item": other}) == {"user": one, "item": other}


def test_an_id_that_was_new_and_is_removed_stays_removed() -> None:
    changes = merged(
        {"item": rows_of([7], 1.0)}, {"item": ChangedRows(ids_of(), removed=ids_of(7))}
    )
    assert plain(changes["item"]) == ({}, {7})
    assert check_changes(changes, "merged")
    back = merged(changes, {"item": rows_of([7], 2.0)})
    assert plain(back["item"]) == ({7: (2.0, 2.0)}, set())


def test_stored_rows_are_merged_as_bytes() -> None:
    def stored(*ids: int) -> ChangedRows:
        rows = torch.full((len(ids), 12), ids[0], dtype=torch.uint8)
        return ChangedRows(ids_of(*ids), stored=rows, row_format=RowFormat.INT8)

    both = merged({"item": stored(1, 2)}, {"item": stored(5, 2)})["item"]
    assert both.row_format is RowFormat.INT8 and both.values is None
    assert both.ids.tolist() == [1, 5, 2]
    assert both.stored is not None and both.stored[:, 0].tolist() == [1, 5, 5]
    with pytest.raises(WeightsError, match="table 'item': expected int8 rows of 12 bytes as in"):
        merged({"item": stored(1)}, {"item": rows_of([2], 1.0)})


def test_parts_of_one_change_may_repeat_rows_but_not_contradict_each_other() -> None:
    one, same = {"item": rows_of([1, 2], 1.0)}, {"item": rows_of([2, 3], 1.0)}
    assert plain(joined({"a": one, "b": same})["item"])[0].keys() == {1, 2, 3}
    with pytest.raises(WeightsError, match="b: table 'item': id 2 has another row in another part"):
        joined({"a": one, "b": {"item": rows_of([2], -1.0)}})
    with pytest.raises(WeightsError, match="b: table 'item': id 1 is removed by one part and"):
        joined({"a": one, "b": {"item": rows_of([], 1.0, (1,))}})
    with pytest.raises(WeightsError, match="b: table 'item': id 9 is removed by one part and"):
        joined({"a": {"item": rows_of([], 1.0, (9,))}, "b": {"item": rows_of([9], 1.0)}})


def test_rows_of_parts_are_compared_bit_for_bit() -> None:
    zero = {"item": rows_of([1], 0.0)}
    with pytest.raises(WeightsError, match="id 1 has another row"):
        joined({"a": zero, "b": {"item": rows_of([1], -0.0)}})
    nan = {"item": rows_of([1], float("nan"))}
    assert joined({"a": nan, "b": nan})["item"].ids.tolist() == [1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (ChangedRows(ids_of(1)), "expected rows for 1 id, got none"),
        (ChangedRows(ids_of(1), torch.zeros(2, 4)), r"expected torch.float32 \[1, N\].*\[2, 4\]"),
        (ChangedRows(ids_of(1), torch.zeros(4)), r"one row for each id, got torch.float32 \[4\]"),
        (ChangedRows(ids_of(1), torch.zeros(1, 0)), r"got torch.float32 \[1, 0\]"),
        (ChangedRows(ids_of(1), torch.zeros(1, 4).half()), r"got torch.float16 \[1, 4\]"),
        (
            ChangedRows(ids_of(1), stored=torch.zeros(1, 4), row_format=RowFormat.FP32),
            r"expected torch.uint8 \[1, N\]",
        ),
        (
            ChangedRows(ids_of(1), stored=torch.zeros(1, 4, dtype=torch.uint8)),
            "expected stored rows with their format",
        ),
        (
            ChangedRows(ids_of(1), torch.zeros(1, 4), torch.zeros(1, 4).byte(), RowFormat.INT8),
            "expected values or stored rows, got both",
        ),
        (ChangedRows(np.ones(1), torch.zeros(1, 4)), r"ids: expected int64 \[N\], got float64"),  # type: ignore[arg-type]
        (ChangedRows(np.ones((1, 1), int), torch.zeros(1, 4)), r"got int64 \[1, 1\]"),
        (rows_of([3, 4, 3], 1.0), "ids: id 3 comes twice"),
        (rows_of([], 1.0, (5, 5)), "removed: id 5 comes twice"),
        (rows_of([3, 4], 1.0, (4,)), "id 4 is changed and removed"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(changed: ChangedRows, words: str) -> None:
    with pytest.raises(WeightsError, match=f"here: table 'item': .*{words}"):
        check_changes({"item": changed}, "here")


def test_the_last_of_each_id_is_found() -> None:
    assert last_of_each(ids_of(5, 3, 5, -1, 3, 5)).tolist() == [3, 4, 5]
    assert last_of_each(ids_of()).tolist() == []
