import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sharded_infer.errors import InputError, RequestError
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.samples.calibration import read_calibration
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.text import read_csv
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec

SPEC = ModelSpec(
    name="small",
    tables=(TableSpec("user", 10, 2), TableSpec("t", 20, 3, features=("seen", "bought"))),
    dense=DenseSpec({"dense": 2, "bias": 1}),
)
COLUMNS: dict[str, list[Any]] = {
    "user": [7, 1, 3],
    "seen": [[3, 1], [], [19]],
    "seen.weights": [[0.5, 2.0], [], [1.5]],
    "dense": [[0.5, 1.0], [2.0, -3.0], [0.0, 0.25]],
    "bias": [3.0, 0.5, 4.25],
    "label": [1, None, 0],
    "reference": [0.5, 0.25, 0.125],
}
CSV = (
    "user,seen,seen.weights,dense,bias,label,reference\r\n"
    '7,"[3, 1]",0.5|2,"0.5,1.0",3,1,0.5\r\n'
    "1,,,2 -3,0.5,,0.25\r\n"
    '3,19,1.5,"[0.0, 0.25]",4.25,0,0.125\r\n'
)


def rows() -> list[dict[str, Any]]:
    return [{name: values[n] for name, values in COLUMNS.items()} for n in range(3)]


def write_tsv(path: Path) -> None:
    text = CSV.replace('"', "").replace("[3, 1]", "3;1").replace("0.5,1.0", "0.5 1")
    path.write_text(text.replace("[0.0, 0.25]", "0 .25").replace(",", "\t"))


FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "JSON": ("s.jsonl", lambda path: path.write_text("\n".join(map(json.dumps, rows())))),
    "CSV": ("s.csv", lambda path: path.write_bytes(CSV.encode())),
    "TSV": ("s.tsv", write_tsv),
    "CSV of pandas": ("s.csv", lambda path: pd.DataFrame(COLUMNS).to_csv(path, index=False)),
    "Parquet": ("s.parquet", lambda path: pq.write_table(pa.table(COLUMNS), path)),
    "Parquet of pandas": ("s.parquet", pd.DataFrame(COLUMNS).to_parquet),
}


def check(read: CalibrationSamples) -> None:
    (batch,) = read.model_input.groups
    assert batch.features == (0, 1, 2)
    assert batch.values.tolist() == [7, 1, 3, 3, 1, 19]
    assert batch.lengths.tolist() == [[1, 1, 1], [2, 0, 1], [0, 0, 0]]
    assert batch.weights is not None and batch.weights.dtype == np.float32
    assert batch.weights.tolist() == [1, 1, 1, 0.5, 2, 1.5]
    assert [array.tolist() for array in read.model_input.dense] == [
        COLUMNS["dense"], [[3.0], [0.5], [4.25]],
    ]  # fmt: skip
    np.testing.assert_array_equal(read.labels["score"], np.array([1, np.nan, 0], np.float32))
    assert read.references["score"].tolist() == COLUMNS["reference"]


@pytest.mark.parametrize("form", FILES)
def test_every_kind_of_file_is_read_as_the_same_samples(form: str, tmp_path: Path) -> None:
    name, write = FILES[form]
    write(tmp_path / name)
    check(read_calibration(SPEC, tmp_path / name))
    check(read_calibration(SPEC, str(tmp_path / name)))


def as_tensors() -> dict[str, Any]:
    return {
        "user": torch.tensor([7, 1, 3], dtype=torch.int32),
        "seen": torch.tensor([[3, 1], [0, 0], [19, 0]]),
        "seen.lengths": torch.tensor([2, 0, 1]),
        "seen.weights": torch.tensor([[0.5, 2.0], [9.0, 9.0], [1.5, 9.0]], requires_grad=True),
        "dense": torch.tensor(COLUMNS["dense"], dtype=torch.bfloat16),
        "bias": torch.tensor(COLUMNS["bias"], dtype=torch.float64),
        "label": np.array([1, np.nan, 0]),
        "reference": torch.tensor([[0.5], [0.25], [0.125]]),
    }


def as_padded_frame() -> pd.DataFrame:
    frame = pd.DataFrame(COLUMNS)
    frame["seen"] = [[3, 1, 0], (0, 0), np.array([19])]
    frame["seen.lengths"] = [2, 0, 1]
    frame["seen.weights"] = [[0.5, 2.0, 9.0], [9.0, 9.0], [1.5]]
    return frame


def as_merged_frame() -> pd.DataFrame:
    """pandas has NaN where a merged row found no match."""
    frame = pd.DataFrame(as_merged_columns())
    frame["seen"] = [[3, 1], float("nan"), [19]]
    return frame.set_index(pd.Index([8, 8, 5]))


def as_merged_columns() -> dict[str, Any]:
    return {**COLUMNS, "seen": [[3, 1], None, [19]], "seen.weights": [[0.5, 2.0], None, [1.5]]}


JOINED = {"seen": np.array([3, 1, 19]), "seen.lengths": [2, 0, 1], "seen.weights": [0.5, 2, 1.5]}
DATA: dict[str, Callable[[], object]] = {
    "rows": rows,
    "a mapping of lists": lambda: COLUMNS,
    "padded tensors": as_tensors,
    "jagged arrays": lambda: {**COLUMNS, **JOINED, "bias": np.array([[3.0], [0.5], [4.25]])},
    "a frame": lambda: pd.DataFrame(COLUMNS),
    "a padded frame": as_padded_frame,
    "nullable types": lambda: pd.DataFrame(COLUMNS).astype({"user": "Int64", "label": "boolean"}),
    "a frame with gaps": as_merged_frame,
    "an arrow table": lambda: pa.table(COLUMNS),
    "a polars frame": lambda: pl.DataFrame(COLUMNS, strict=False),
    "a polars frame with gaps": lambda: pl.DataFrame(as_merged_columns()),
}


@pytest.mark.parametrize("form", DATA)
def test_every_kind_of_data_in_memory_is_read_as_the_same_samples(form: str) -> None:
    check(read_calibration(SPEC, DATA[form]()))


NO_ID = "expected an id or a list of ids, got"
FRAMES: list[tuple[str, Any, str]] = [
    ("user", [7.0, float("nan"), 3.0], f"^row 0, 'user': {NO_ID} 7.0 .pandas makes floats of"),
    ("user", [7, 1, "x"], f"^row 2, 'user': {NO_ID} 'x'"),
    ("user", pd.to_datetime(["2026-01-01"] * 3), f"^row 0, 'user': {NO_ID} "),
    ("user", np.array([1, 2**63, 2], np.uint64), f"^row 1, 'user': {NO_ID} one above 2.63 - 1"),
    ("dense", [[1, 2], [1], [1, 2]], r"^row 1, 'dense': expected 2 numbers, got \[1\]"),
    ("dense", [1.0, 2.0, 3.0], r"'dense': expected FP32 \[B, 2\], got \[3\]"),
    ("bias", ["a", "b", "c"], "^row 0, 'bias': expected 1 number, got 'a'"),
    (
        *("seen.weights", [[1.0], [], [1.0]]),
        r"^row 0, 'seen.weights': expected 2 weights, one for each id, got \[1.0\]",
    ),
    (
        *("seen.lengths", [2, 0, 2]),
        "^row 2, 'seen.lengths': expected 0 to 1, the ids of its row, got 2",
    ),
    ("seen.lengths", [2, 0, 1.5], "'seen.lengths': expected whole numbers"),
    ("label", [1, 0, 2], "^row 2, 'label': expected 0 or 1, got 2"),
    ("label", ["yes", "no", "no"], "^row 0, 'label': expected 0 or 1, got"),
    ("reference", [1, None, 2], "^row 1, 'reference': expected the trained model"),
    ("usr", [1, 2, 3], "^column 'usr' is not one of the model's inputs: .*; did"),
]


@pytest.mark.parametrize(("name", "column", "words"), FRAMES)
def test_what_is_wrong_in_a_frame_is_said_by_place(name: str, column: object, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_calibration(SPEC, pd.DataFrame({**COLUMNS, name: column}))


def test_what_is_wrong_in_parquet_is_said_with_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({**COLUMNS, "user": ["7", "1", "3"]}), path)
    with pytest.raises(RequestError, match="^row 0, 'user': expected an id or a list of ids, got"):
        read_calibration(SPEC, path)
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["user", "user"]), path)
    with pytest.raises(InputError, match="column 'user' comes twice"):
        read_samples(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="s.parquet: not Parquet: "):
        read_samples(path)
    with pytest.raises(InputError, match="none.parquet: cannot be read: "):
        read_samples(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('user,dense,bias\n1,"1,\n2",3\nx,1 2,3\n', "line 4, 'user': 'x' is not a number"),
        ("user,dense,bias\n1,1 2,3\n1,2\n", "line 3: 2 cells, expected 3"),
        ("user,user\n1,2\n", "line 1: 'user' comes twice"),
        ('user,dense,bias\n1,"1 2,3\n', "line 2: not CSV: "),
        ("user,dense,bias\n1,1,3\n", "line 2, 'dense': expected 2 numbers, got .1."),
        ("usr,dense,bias\n1,1 2,3\n", "line 2: 'usr' is not one of the model's inputs: .*; did"),
    ],
)
def test_what_is_wrong_in_csv_is_said_with_line_and_column(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=f"^{words}"):
        batch_samples(SPEC, read_csv(text))
