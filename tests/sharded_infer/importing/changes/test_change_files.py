from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file
from torch import Tensor

from kernels.row_format import RowFormat
from sharded_infer.errors import StorageError, WeightsError
from sharded_infer.importing.changes import parquet_rows
from sharded_infer.importing.changes.change_files import open_changes
from sharded_infer.importing.changes.changed_rows import (
    ChangedRows,
    Changes,
    check_changes,
    joined,
    merged,
)
from sharded_infer.importing.changes.written_files import write_changes

Given = dict[str, tuple[list[int], Tensor, list[int]]]
# Ids, rows, and ids that are removed.
GIVEN: Given = {
    "item": ([5, -3, 2**62], torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), [9]),
    "shop.city": ([0], torch.ones(1, 7) / 3, []),
}


def _safetensors(path: Path, given: Given) -> Path:
    tensors: dict[str, Tensor] = {}
    for table, (ids, rows, removed) in given.items():
        tensors |= {f"{table}.ids": torch.tensor(ids), f"{table}.values": rows}
        tensors |= {f"{table}.removed": torch.tensor(removed)} if removed else {}
    save_file(tensors, file := path.with_suffix(".safetensors"))
    return file


def _npz(path: Path, given: Given) -> Path:
    arrays: dict[str, np.ndarray] = {}
    for table, (ids, rows, removed) in given.items():
        arrays |= {f"{table}.ids": np.array(ids), f"{table}.values": rows.numpy()}
        arrays |= {f"{table}.removed": np.array(removed, np.int64)}
    np.savez(file := path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    return file


def _parquet(path: Path, given: Given) -> Path:
    rows: list[tuple[str, int, list[float] | None, bool]] = []
    for table, (ids, values, removed) in given.items():
        rows += [(table, *row, False) for row in zip(ids, values.tolist(), strict=True)]
        rows += [(table, row, None, True) for row in removed]
    np.random.default_rng(4).shuffle(rows)
    columns = dict(zip(("table", "id", "values", "removed"), zip(*rows, strict=True), strict=True))
    lists = pa.array(columns["values"], pa.list_(pa.float32()))
    table = pa.table({**columns, "values": lists})
    parquet.write_table(table, file := path.with_suffix(".parquet"), row_group_size=2)
    return file


Saver = Callable[[Path, Given], Path]


def plain(changes: Changes) -> dict[str, tuple[dict[int, list[float]], list[int]]]:
    found = {}
    for table, changed in changes.items():
        rows = [] if changed.rows is None else changed.rows.tolist()
        assert changed.rows is None or changed.rows.dtype in (torch.float32, torch.uint8)
        assert len(set(changed.ids.tolist())) == len(changed.ids)
        by_id = dict(zip(changed.ids.tolist(), rows, strict=True))
        found[table] = by_id, sorted(changed.removed.tolist())
    return found


EXPECTED = {
    table: (dict(zip(ids, rows.tolist(), strict=True)), removed)
    for table, (ids, rows, removed) in GIVEN.items()
}


@pytest.mark.parametrize("save", [_safetensors, _npz, _parquet])
def test_rows_of_several_tables_are_read(
    save: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "_BATCH_ROWS", 3)
    changes = open_changes(save(tmp_path / "changed", GIVEN))
    assert plain(changes) == EXPECTED
    assert all(changed.ids.dtype == np.int64 for changed in changes.values())


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(dtype) for dtype in (pa.float16(), pa.float32(), pa.float64())),
        pa.large_list(pa.float32()),
        pa.list_(pa.float32(), 4),
    ],
    ids=str,
)
def test_lists_of_every_kind_are_read_from_parquet(kind: pa.DataType, tmp_path: Path) -> None:
    rows = GIVEN["item"][1].half().float()
    path = tmp_path / "changed.parquet"
    lists = pa.array(list(rows.numpy().astype(np.float16)), pa.list_(pa.float16()))
    if kind.value_type != pa.float16():
        lists = pa.array(rows.tolist(), kind)
    parquet.write_table(pa.table({"id": np.arange(3, dtype=np.uint32), "values": lists}), path)
    changes = open_changes(path, table="item")
    assert plain(changes) == {"item": (dict(enumerate(rows.tolist())), [])}


def test_rows_that_are_stored_already_are_read_as_they_are(tmp_path: Path) -> None:
    rows = torch.randint(0, 256, (2, 12), dtype=torch.uint8)
    path = tmp_path / "changed.safetensors"
    save_file({"item.ids": torch.tensor([4, 2]), "item.int8": rows}, path)
    changed = open_changes(path)["item"]
    assert changed.row_format is RowFormat.INT8 and changed.values is None
    assert changed.stored is not None and changed.stored.equal(rows)


def test_what_was_read_does_not_change_with_the_file(tmp_path: Path) -> None:
    path = _safetensors(tmp_path / "changed", GIVEN)
    changes = open_changes(path)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert plain(changes) == EXPECTED


def test_the_files_of_a_folder_are_parts_of_one_change(tmp_path: Path) -> None:
    rows = torch.arange(6.0).reshape(3, 2)
    _safetensors(tmp_path / "rank_0", {"item": ([1, 2], rows[:2], [8])})
    # Both ranks have row 2, as where a table is copied to all of them.
    _parquet(tmp_path / "rank_1", {"item": ([2, 3], rows[1:], []), "user": ([1], rows[:1], [])})
    for name in (".half.npz", "later.npz.tmp", "later.npz.partial"):
        (tmp_path / name).write_bytes(b"half of a file")
    assert plain(open_changes(tmp_path)) == {
        "item": ({1: [0.0, 1.0], 2: [2.0, 3.0], 3: [4.0, 5.0]}, [8]),
        "user": ({1: [0.0, 1.0]}, []),
    }
    _npz(tmp_path / "rank_2", {"item": ([3], rows[:1], [])})
    with pytest.raises(WeightsError, match=r"rank_2.npz: table 'item': id 3 has another row"):
        open_changes(tmp_path)


def test_written_changes_are_read_again(tmp_path: Path) -> None:
    whole = torch.randn(5, 4)
    stored = torch.randint(0, 256, (1, 8), dtype=torch.uint8)
    changes = {
        # Both are views of one tensor.
        "item": ChangedRows(np.array([3, 1]), whole[:2], removed=np.array([7])),
        "user": ChangedRows(np.array([2, 4]), whole[3:]),
        "ad": ChangedRows(np.array([6]), stored=stored, row_format=RowFormat.INT8),
        "gone": ChangedRows(np.empty(0, np.int64), removed=np.array([5])),
    }
    write_changes(changes, tmp_path / "changed.safetensors")
    again = open_changes(tmp_path / "changed.safetensors")
    assert plain(again) == plain(changes)
    assert again["ad"].row_format is RowFormat.INT8
    assert [path.name for path in tmp_path.iterdir()] == ["changed.safetensors"]


def test_changes_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    changes = {"item": ChangedRows(np.array([1]), torch.ones(1, 4))}
    with pytest.raises(WeightsError, match=r"changed.npz: expected a name that ends in .safe"):
        write_changes(changes, tmp_path / "changed.npz")
    with pytest.raises(StorageError, match=r"none/changed.safetensors: cannot be written"):
        write_changes(changes, tmp_path / "none" / "changed.safetensors")
    (tmp_path / "there.safetensors").mkdir()
    with pytest.raises(StorageError, match=r"there.safetensors: cannot be written"):
        write_changes(changes, tmp_path / "there.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["there.safetensors"]


def rows_of(ids: list[int], number: float, removed: tuple[int, ...] = ()) -> ChangedRows:
    values = torch.full((len(ids), 2), float(number))
    return ChangedRows(np.array(ids, np.int64), values, removed=np.array(removed, np.int64))


def test_merged_changes_do_what_they_do_one_after_the_other() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        rows: dict[int, list[float]] = {}
        removed: set[int] = set()
        changes: Changes = {}
        for step in range(4):
            ids = rng.permutation(12)
            count, gone = rng.integers(0, 7, 2)
            later = rows_of(ids[:count].tolist(), step, tuple(ids[count : count + gone].tolist()))
            changes = merged(changes, check_changes({"item": later}, "here"))
            new_rows, new_removed = plain({"item": later})["item"]
            rows = {key: row for key, row in rows.items() if key not in new_removed} | new_rows
            removed = (removed - new_rows.keys()) | {*new_removed}
        assert plain(check_changes(changes, "merged"))["item"] == (rows, sorted(removed))


def test_stored_rows_are_merged_as_bytes() -> None:
    def stored(*ids: int) -> ChangedRows:
        rows = torch.full((len(ids), 12), ids[0], dtype=torch.uint8)
        return ChangedRows(np.array(ids), stored=rows, row_format=RowFormat.INT8)

    both = merged({"item": stored(1, 2)}, {"item": stored(5, 2)})["item"]
    assert both.row_format is RowFormat.INT8 and both.values is None
    assert both.ids.tolist() == [1, 5, 2]
    assert both.stored is not None and both.stored[:, 0].tolist() == [1, 5, 5]
    with pytest.raises(WeightsError, match="table 'item': expected int8 rows of 12 bytes as in"):
        merged({"item": stored(1)}, {"item": rows_of([2], 1.0)})


def test_parts_of_one_change_may_repeat_rows_but_not_contradict_each_other() -> None:
    one, same = {"item": rows_of([1, 2], 1.0)}, {"item": rows_of([2, 3], 1.0)}
    assert plain(joined({"a": one, "b": same}))["item"][0].keys() == {1, 2, 3}
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
