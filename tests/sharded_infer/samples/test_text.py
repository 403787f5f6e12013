from dataclasses import replace

import pytest

from sharded_infer.errors import RequestError
from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.text import read_json, read_tsv
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec

SPEC = ModelSpec(
    name="small",
    tables=(TableSpec("C1", 10, 2), TableSpec("t", 20, 3, features=("C2", "C3"))),
    dense=DenseSpec({"dense": 2, "bias": 1}),
)


def test_json_is_an_array_one_object_or_an_object_a_line() -> None:
    one, two = {"dense": [1, 2.5], "C1": 7}, {"C2": []}
    assert read_json('[{"dense": [1, 2.5], "C1": 7}, {"C2": []}]') == [one, two]
    assert read_json('{"dense": [1, 2.5], "C1": 7}') == [one]
    assert read_json('{"dense": [1, 2.5], "C1": 7}\n\n  \r\n{"C2": []}\n') == [one, two]
    assert read_json("") == read_json("\n \n") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"C1": 1}\n{"C1": 2}\n{"C1": \n', "line 3: not JSON"),
        ('{"C1": 1}\n{"C1": ' + "1" * 5000 + "}", "line 2: not JSON"),
        ('{"C1": 1}\n' + "[" * 100_000, "line 2: not JSON"),
        ('{"C1": 1}\n[1]\n', r"line 2: expected a JSON object, got \[1\]"),
        ('"C1"', "sample 0: expected a JSON object, got 'C1'"),
    ],
    ids=["cut", "digits", "depth", "a list", "a text"],
)
def test_json_lines_that_are_not_objects_are_counted_and_named(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_json(text)


def test_tsv_has_names_first_and_commas_in_its_cells() -> None:
    assert read_tsv("dense\tC1\tC2\n0.5,-1e3\t7\t3,1\n\n1,2\t\t-4\n") == [
        {"dense": [0.5, -1000.0], "C1": [7], "C2": [3, 1]},
        {"dense": [1, 2], "C1": [], "C2": [-4]},
    ]
    assert read_tsv("C1\tC2\r\n1\t2\r\n") == [{"C1": [1], "C2": [2]}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("C1\tC2\n1\t2\n\n1\t2\t3\n", "line 4: 3 cells, expected 2"),
        ("C1\tC2\n1\tx\n", "line 2, 'C2': 'x' is not a number"),
        ("\nC2\tC1\tC2\n1\t2\t3\n", "line 2: 'C2' comes twice"),
        (" \n", "empty"),
    ],
)
def test_tsv_lines_are_numbered_as_the_file_has_them(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_tsv(text)


GOOD = {"dense": [0, 0], "bias": 0}


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({**GOOD, "C4": 1}, "sample 1: 'C4' is not one of the model's inputs"),
        (
            {**GOOD, "densse": 1},
            "'densse' is not one of the model's inputs: dense, .*; did you mean 'dense'?",
        ),
        ({"dense": [0, 0]}, "sample 1, 'bias': expected 1 number, got None"),
        ({**GOOD, "dense": [0]}, r"sample 1, 'dense': expected 2 numbers, got \[0\]"),
        ({**GOOD, "dense": [0, True]}, "sample 1, 'dense': expected 2 numbers"),
        ({**GOOD, "C1": 1.0}, "sample 1, 'C1': expected an id or a list of ids, got 1.0"),
        ({**GOOD, "C1": [1, [2]]}, "sample 1, 'C1'"),
        ({**GOOD, "C1": [None]}, "sample 1, 'C1'"),
        ({**GOOD, "C1": 2**63}, "sample 1, 'C1'"),
    ],
)
def test_a_wrong_sample_is_named_with_its_input(sample: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        batch_samples(SPEC, [GOOD, sample])


def test_labels_and_reference_scores_are_no_inputs() -> None:
    outcomes = {"label": 1, "label.score": None, "reference": [2, "x"], "reference.score": 3}
    assert set(batch_samples(SPEC, [{**GOOD, **outcomes}])) == {"dense", "bias"}
    with pytest.raises(RequestError, match="sample 0: 'label.click' is not one of"):
        batch_samples(SPEC, [{**GOOD, "label.click": 1}])
    assert set(batch_samples(SPEC, [{**GOOD, "clicked": 1}], {"score": "clicked"})) == set(GOOD)


@pytest.mark.parametrize("text", ['{"bias": 0, "dense": [0, 0]}\n\n{"bias": 0}\n', "tsv"])
def test_a_sample_with_a_line_of_its_own_is_named_by_it(text: str) -> None:
    samples = read_tsv("bias\tdense\n0\t0,0\n0\t\n") if text == "tsv" else read_json(text)
    with pytest.raises(RequestError, match="^line 3, 'dense': expected 2 numbers, got"):
        batch_samples(SPEC, samples)
    labelled = read_json('{"label": 1}\n\n{"bias": 0, "label": 0}\n')
    with pytest.raises(RequestError, match="^line 1, 'dense': expected 2 numbers, got None"):
        batch_samples(SPEC, labelled)


def test_a_required_feature_that_no_sample_names_is_refused() -> None:
    tables = SPEC.tables[0], replace(SPEC.tables[1], required=("C3",))
    spec = replace(SPEC, tables=tables)
    with pytest.raises(RequestError, match="'C3' is in none of the samples: the model requires it"):
        batch_samples(spec, [{"dense": [1, 2], "bias": 1, "C1": 3, "C2": 4}])
    found = batch_samples(spec, [{"dense": [1, 2], "bias": 1, "C3": []}])
    assert found["C3.lengths"].tolist() == [0]
