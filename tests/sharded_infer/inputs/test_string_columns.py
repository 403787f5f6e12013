import numpy as np
import pandas as pd
import polars as pl
import pytest

from kernels.ids.id_hash import StringHash
from sharded_infer.client import hash_strings
from sharded_infer.errors import RequestError
from sharded_infer.inputs.columns import columns_of
from sharded_infer.inputs.input_columns import input_arrays
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

SPEC = ModelSpec(
    "words",
    (TableSpec("word", 9, 1, id_map=IdMapSpec("zero", "xxh3_64", 7)), TableSpec("number", 9, 1)),
)
A, B = hash_strings(["a", "größe"], StringHash.XXH3_64, 7).tolist()


@pytest.mark.parametrize(
    "samples",
    [
        [{"word": ["a", "größe"]}, {}, {"word": "a"}],
        {"word": [["a", "größe"], None, "a"]},
        {"word": ["a", "größe", "a"], "word.lengths": [2, 0, 1]},
        {"word": np.array(["a", "größe", "a"]), "word.lengths": [2, 0, 1]},
        {"word": [["a", "größe"], ["x", "x"], ["a", "x"]], "word.lengths": [2, 0, 1]},
        # Numbers beside strings are raw ids.
        [{"word": ["a", B]}, {"word": []}, {"word": A}],
        pd.DataFrame({"word": [["a", "größe"], None, ["a"]]}),
        pl.DataFrame({"word": [["a", "größe"], None, ["a"]]}),
    ],
)
def test_strings_are_hashed_whatever_the_samples_are(samples: object) -> None:
    found = input_arrays(SPEC, columns_of(samples))
    assert found["word"].tolist() == [A, B, A]
    assert found["word.lengths"].tolist() == [2, 0, 1]


def test_a_column_of_strings_has_one_a_sample() -> None:
    for column in (["a", "größe"], pd.Series(["a", "größe"]), pl.Series(["a", "größe"])):
        assert input_arrays(SPEC, columns_of({"word": column}))["word"].tolist() == [A, B]


def test_columns_of_numbers_stay_as_they_are() -> None:
    ids = np.array([A, 3])
    assert input_arrays(SPEC, columns_of({"word": ids}))["word"].tolist() == [A, 3]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{"number": "a"}], "sample 0, 'number': expected an id or a list of ids, got 'a'"),
        ([{}, {"word": "\ud800"}], "sample 1, 'word': a string is no text: surrogates"),
        ([{"word": ["a", 0.5]}], r"sample 0, 'word': expected an id or a list of ids, got \["),
    ],
)
def test_what_is_neither_is_refused_by_sample(samples: object, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        input_arrays(SPEC, columns_of(samples))
