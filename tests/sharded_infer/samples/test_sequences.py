import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sharded_infer.inputs.input_columns import input_arrays
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec

SPEC = ModelSpec(
    "m",
    (TableSpec("item", 50, 8, features=("candidate", "seen")), TableSpec("action", 4, 4)),
    dense=DenseSpec({"price": 1}),
    sequences={"history": SequenceSpec(6, ("seen", "action"), {"age": 1})},
)
SAMPLES = [
    {"price": 1.5, "candidate": 3, "seen": [7, 8], "action": [1, 2], "age": [0.5, 1.5]},
    {"price": 2.5, "candidate": 4, "seen": [], "action": [], "age": []},
    {"price": 3.5, "candidate": 5, "seen": [9], "action": [3], "age": [2.5]},
]


def written(folder: Path, kind: str) -> Path:
    path = folder / f"samples.{kind}"
    frame = pd.DataFrame(SAMPLES)
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "tsv":
        frame.to_csv(path, sep="\t", index=False)
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in SAMPLES))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "tsv", "parquet"])
def test_files_have_a_list_for_each_sample(tmp_path: Path, kind: str) -> None:
    samples = read_samples(written(tmp_path, kind))
    (group,) = make_input(SPEC, input_arrays(SPEC, samples)).groups
    assert group.lengths.tolist() == [[1, 1, 1], [2, 0, 1], [2, 0, 1], [2, 0, 1]]
    assert group.values[:9].tolist() == [3, 4, 5, 7, 8, 9, 1, 2, 3]
    assert group.values[9:].astype(np.uint32).view(np.float32).tolist() == [0.5, 1.5, 2.5]
    assert statistics_of(SPEC, samples)["seen"].pooling_factor == 1.0


def test_several_numbers_for_each_id_are_lists_in_json_and_parquet(tmp_path: Path) -> None:
    spec = ModelSpec(
        "m",
        (TableSpec("item", 50, 8, features=("seen",)),),
        sequences={"history": SequenceSpec(6, ("seen",), {"place": 2})},
    )
    samples = [
        {"seen": [7, 8], "place": [[1.0, 2.0], [3.0, 4.0]]},
        {"seen": [9], "place": [[5.0, 6.0]]},
    ]
    pd.DataFrame(samples).to_parquet(tmp_path / "s.parquet")
    (tmp_path / "s.json").write_text(json.dumps(samples))
    for name in ("s.parquet", "s.json"):
        arrays = input_arrays(spec, read_samples(tmp_path / name))
        assert arrays["place"].tolist() == [[1, 2], [3, 4], [5, 6]]
        assert arrays["place.lengths"].tolist() == [2, 1]


def test_padding_is_not_read() -> None:
    spec = ModelSpec("m", (TableSpec("tag", rows=4, dim=1, padding_idx=0),))
    found = statistics_of(spec, [{"tag": [0, 3, 0, 0]}, {"tag": [0]}, {"tag": [3, 2]}])
    assert found["tag"].pooling_factor == 1.0
    assert found["tag"].histogram == (0.0, 0.0, 1 / 3, 2 / 3)


def test_ids_are_counted_as_their_rows() -> None:
    table = TableSpec("tag", rows=4, dim=1, padding_idx=0, id_steps={"tag": (("add", -10),)})
    found = statistics_of(ModelSpec("m", (table,)), [{"tag": [10, 13, 10, 9]}, {"tag": [12]}])
    assert found["tag"].pooling_factor == 1.5
    assert found["tag"].histogram == (0.0, 0.0, 0.5, 0.5)


def test_a_feature_of_several_tables_is_counted_in_the_largest() -> None:
    tables = (
        TableSpec("small", rows=2, dim=1, features=("id",), out_of_range="modulo"),
        TableSpec("large", rows=4, dim=1, features=("id",)),
        TableSpec("least", rows=1, dim=1, features=("id",), out_of_range="ignore"),
    )
    found = statistics_of(ModelSpec("m", tables), [{"id": [3]}, {"id": [1]}])
    assert list(found) == ["id"]
    assert found["id"].histogram == (0.0, 0.5, 0.0, 0.5)
