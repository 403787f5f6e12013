"""Files of changed rows that contradict themselves or are something else."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.change_files import open_changes

ROWS = np.random.default_rng(1).standard_normal((100, 4)).astype(np.float32)


ONE, TWO = torch.ones(1, 4), torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"item": TWO}, "'item': expected <table>.ids, <table>.values"),
        ({"item.ids": TWO}, "table 'item': expected ids with one kind of rows, got ids"),
        ({"item.values": ONE}, "table 'item': expected ids with one kind of rows, got values"),
        (
            {"item.ids": TWO[:1], "item.values": ONE, "item.int8": ONE.byte()},
            "one kind of rows, got ids, int8, values",
        ),
        (
            {"item.ids": TWO, "item.values": ONE},
            r"'item.values': expected 2 rows, one for each id, .*, got \[1, 4\] torch.float32",
        ),
        ({"item.ids": TWO, "item.values": torch.ones(2, 0)}, r"got torch.float32 \[2, 0\]"),
        ({"item.ids": TWO[:1], "item.int8": ONE}, r"of torch.uint8, got \[1, 4\] torch.float32"),
        ({"item.ids": ONE[0, :1], "item.values": ONE}, "'item.ids': expected whole numbers"),
        ({"item.ids": torch.ones(1, 2).long(), "item.values": ONE}, "expected one number an id"),
        (
            {"item.ids": torch.tensor([5, 5]), "item.values": torch.ones(2, 4)},
            "table 'item': ids: id 5 comes twice",
        ),
        (
            {"item.ids": TWO[:1], "item.values": ONE, "item.removed": TWO},
            "table 'item': id 1 is changed and removed",
        ),
        ({"item.removed": torch.tensor([2, 2])}, "table 'item': removed: id 2 comes twice"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    tensors: dict[str, torch.Tensor], words: str, tmp_path: Path
) -> None:
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(copies, path := tmp_path / "changed.safetensors")
    with pytest.raises(WeightsError, match=f"{path}.*{words}"):
        open_changes(path)


def test_ids_that_are_equal_as_64_bits_come_twice(tmp_path: Path) -> None:
    ids = np.array([2**64 - 1, 2**64 - 1], np.uint64)
    np.savez(path := tmp_path / "c.npz", **{"item.ids": ids, "item.values": ROWS[:2]})  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match="table 'item': ids: id -1 comes twice"):
        open_changes(path)


LISTS: list[Any] = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": None}, "no column 'id', only 'table', 'values'"),
        ({"table": None}, "expected a column 'table', or a table for all rows; got neither"),
        ({"id": [1.0, 2.0]}, "'id': expected whole numbers, got double"),
        ({"id": [1, None]}, "'id': expected a value in each row, got none in 1 of 2"),
        ({"values": [1.0, 2.0]}, "'values': expected a list of numbers in each row, got double"),
        ({"values": [[1.0, 2.0], None]}, "expected numbers in each row, got none in some"),
        ({"values": [[1.0, 2.0], [1.0]]}, "as many numbers in each row of a table, got 1 and 2"),
        (
            {"values": [[], []]},
            "as many numbers in each row of a table, got 0 and 0|expected float",
        ),
        ({"values": [[1, 2], [3, 4]]}, "expected floating numbers or bytes, got .* of int64"),
        (
            {"values": pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8()))},
            "table 'item': expected floating numbers, .* got rows of 2 uint8",
        ),
        ({"removed": [0, 1]}, "'removed': expected booleans, got int64"),
        ({"id": [7, 7]}, "table 'item': ids: id 7 comes twice"),
        ({"id": [7, 7], "removed": [True, False]}, "table 'item': id 7 is changed and removed"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(
    columns: dict[str, Any], words: str, tmp_path: Path
) -> None:
    whole = {"table": ["item", "item"], "id": [1, 2], "values": LISTS}
    given = {name: column for name, column in (whole | columns).items() if column is not None}
    parquet.write_table(pa.table(given), path := tmp_path / "changed.parquet")
    with pytest.raises(WeightsError, match=f"{path}.*({words})"):
        open_changes(path)


def test_rows_of_one_table_with_other_lengths_far_apart_are_refused(tmp_path: Path) -> None:
    lists = [[1.0, 2.0]] * 70_000 + [[1.0]] * 70_000
    columns = {"table": ["item"] * 140_000, "id": np.arange(140_000), "values": lists}
    parquet.write_table(pa.table(columns), path := tmp_path / "changed.parquet")
    with pytest.raises(WeightsError, match="table|'values': expected .*as many"):
        open_changes(path)


def test_a_table_that_is_given_twice_or_not_at_all_is_refused(tmp_path: Path) -> None:
    columns = {"table": ["item"], "id": [1], "values": [[1.0]]}
    parquet.write_table(pa.table(columns), path := tmp_path / "changed.parquet")
    with pytest.raises(WeightsError, match="or a table for all rows; got a column and 'item'"):
        open_changes(path, table="item")
    arrays: dict[str, Any] = {"item.ids": np.array([1]), "item.values": ROWS[:1]}
    np.savez(path := tmp_path / "changed.npz", **arrays)
    with pytest.raises(WeightsError, match="names its tables itself, expected no table, got 'x'"):
        open_changes(path, table="x")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "changed.pt").write_bytes(b"anything")
    with pytest.raises(WeightsError, match=r"expected a file of changed rows, .*; got '.pt'"):
        open_changes(tmp_path / "changed.pt")
