from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from sharded_infer import open_model, open_vocabulary, publish
from sharded_infer.errors import RequestError
from sharded_infer.inputs.columns import columns_of
from sharded_infer.samples.request import batch_samples, model_input_of
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, QuantizationSpec, TableSpec
from tests.support.raw_ids import Sum

MAP = IdMapSpec("zero", strings="murmur3_x64_128", seed=9)
SPEC = ModelSpec(
    "m", (TableSpec("word", rows=4, dim=1, id_map=MAP), TableSpec("row", rows=4, dim=1))
)


def hashes(*strings: bytes) -> list[int]:
    return hash_strings(StringHash.MURMUR3_X64_128, *joined_strings(strings), 9).tolist()


@pytest.mark.parametrize(
    "samples",
    [
        [{"word": ["é", "b"], "row": 1}, {"word": "a", "row": [2, 3]}, {"row": 1}],
        {"word": [["é", "b"], "a", None], "row": [[1], [2, 3], [1]]},
        {"word": [["é".encode(), b"b"], np.array(["a"]), []], "row": [[1], [2, 3], [1]]},
        pa.table({"word": [["é", "b"], ["a"], None], "row": [[1], [2, 3], [1]]}),
    ],
    ids=["rows", "lists", "bytes", "arrow"],
)
def test_strings_are_hashed_as_the_table_says(samples: Any) -> None:
    found = batch_samples(SPEC, samples)
    assert found["word"].tolist() == hashes("é".encode(), b"b", b"a")
    assert found["word.lengths"].tolist() == [2, 1, 0]
    (group,) = model_input_of(SPEC, samples).groups
    assert group.values.tolist() == [*hashes("é".encode(), b"b", b"a"), 1, 2, 3, 1]


@pytest.mark.parametrize("strings", [np.array(["a", "b"]), np.array([b"a", b"b"]), ["a", "b"]])
def test_one_string_a_sample_is_a_column(strings: Any) -> None:
    found = batch_samples(SPEC, {"word": strings, "row": [1, 2]})
    assert found["word"].tolist() == hashes(b"a", b"b")


def test_strings_may_be_joined_with_lengths() -> None:
    found = batch_samples(SPEC, {"word": ["a", "b", "c"], "word.lengths": [1, 2], "row": [1, 2]})
    assert found["word"].tolist() == hashes(b"a", b"b", b"c")
    assert found["word.lengths"].tolist() == [1, 2]


def test_an_opened_version_scores_strings(tmp_path: Path) -> None:
    words, weights = ["", "a", "é", "x"], {"word": torch.rand(4, 1), "row": torch.rand(4, 1)}
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    source = open_vocabulary(tmp_path / "words.txt", "murmur3_x64_128", 9)
    spec = replace(SPEC, dense=DenseSpec({"age": 1}), quantization=QuantizationSpec("fp32"))
    path = publish(spec, weights, Sum(), tmp_path / "models", id_maps={"word": source}).path
    inputs = {"word": ["x", "", "no"], "row": [1, 2, 3], "age": np.zeros((3, 1), np.float32)}
    found = open_model(path).predict(inputs)["score"]
    wanted = torch.stack([*weights["word"][[3, 0], 0], torch.tensor(0.0)]) + weights["row"][1:, 0]
    assert np.allclose(found, wanted / 2)


def test_numbers_are_raw_ids_already() -> None:
    samples = columns_of({"word": np.array([5, -6]), "row": [1, 2]})
    assert batch_samples(SPEC, samples)["word"].tolist() == [5, -6]
    assert batch_samples(SPEC, [{"word": [7, 8]}, {"word": "a"}])["word"].tolist() == [
        *(7, 8),
        *hashes(b"a"),
    ]


def test_other_cells_and_strings_of_other_features_are_refused() -> None:
    for samples, words in (
        ([{"row": "a"}], "sample 0, 'row': expected an id or a list of ids, got 'a'"),
        ([{"word": 0.5}], "sample 0, 'word': expected an id"),
    ):
        with pytest.raises(RequestError, match=words):
            batch_samples(SPEC, samples)
