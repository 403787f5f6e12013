import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from sharded_infer.errors import InputError
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.samples.calibration import read_calibration
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.spec_file import parse_spec

FIELDS: dict[str, Any] = {
    "name": "m",
    "tables": [
        {"name": "ads", "rows": 50, "dim": 4, "features": ["shown", "clicked"]},
        {"name": "user", "rows": 30, "dim": 4, "out_of_range": "modulo"},
    ],
    "dense": {"inputs": {"age": 1, "context": 2}},
}
SPEC = parse_spec(FIELDS)
DENSE = {"age": 0.5, "context": [1, -2.25]}


def read_json(folder: Path, samples: object, spec: ModelSpec = SPEC) -> CalibrationSamples:
    path = folder / "samples.json"
    path.write_text(json.dumps(samples))
    return read_calibration(spec, path)


def read_tsv(folder: Path, *lines: str) -> CalibrationSamples:
    path = folder / "samples.tsv"
    path.write_text("\n".join(lines))
    return read_calibration(SPEC, path)


def read_tensors(
    folder: Path, changes: dict[str, NDArray[np.generic] | None]
) -> CalibrationSamples:
    tensors: dict[str, NDArray[np.generic] | None] = {
        "sparse.values": np.array([7, 1, 2, 29]),
        "sparse.lengths": np.array([[1, 0], [0, 2], [0, 1]]),
        "dense.age": np.array([[0.5], [1]], np.float32),
        "dense.context": np.zeros((2, 2), np.float32),
        **changes,
    }
    path = folder / "samples.safetensors"
    save_file({name: array for name, array in tensors.items() if array is not None}, path)
    return read_calibration(SPEC, path)


def labels_of(samples: CalibrationSamples) -> list[float] | None:
    return samples.labels["score"].tolist() if samples.labels else None


def test_tensors_are_taken_as_golden_requests_keep_them(tmp_path: Path) -> None:
    read = read_tensors(tmp_path, {"label": np.array([1, 0])})
    (batch,) = read.model_input.groups
    assert batch.values.tolist() == [7, 1, 2, 29] and batch.weights is None
    assert labels_of(read) == [1, 0]
    assert read.labels["score"].dtype == np.float32
    weights = np.array([1, 0.5, 2, 3], np.float32)
    (batch,) = read_tensors(tmp_path, {"sparse.weights": weights}).model_input.groups
    assert batch.weights is not None and batch.weights.tolist() == weights.tolist()


def test_numbers_that_are_not_finite_are_refused_by_input(tmp_path: Path) -> None:
    for changes, words in (
        ({"sparse.weights": [1, np.nan, 1, 1]}, "weights of 'clicked': .* finite .*, got nan"),
        ({"dense.age": [[0.5], [np.inf]]}, "input 'age', sample 1: .* finite numbers, got inf"),
    ):
        with pytest.raises(InputError, match=words):
            read_tensors(tmp_path, {n: np.array(v, np.float32) for n, v in changes.items()})


def test_labels_may_be_missing_empty_or_of_either_class(tmp_path: Path) -> None:
    rows = [{**DENSE, "label": label} for label in (0, 1, 1.0, [0], [], None)]
    read = read_json(tmp_path, [*rows, DENSE])
    expected = np.array([0, 1, 1, 0] + [np.nan] * 3, np.float32)
    np.testing.assert_array_equal(read.labels["score"], expected)
    assert read.labelled == 4
    read = read_tsv(tmp_path, "label\tage\tcontext", "1\t0\t0,0", "\t0\t0,0", "0.0\t0\t0,0")
    np.testing.assert_array_equal(read.labels["score"], np.array([1, np.nan, 0], np.float32))
    read = read_tensors(tmp_path, {"label": np.array([np.nan, 1])})
    assert read.labelled == 1


@pytest.mark.parametrize("label", [2, -1, 0.5, "1", True, [0, 1], [2], {"value": 1}])
def test_another_label_is_refused_with_its_sample(label: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^sample 1, 'label': expected 0 or 1, got "):
        read_json(tmp_path, [{**DENSE, "label": 1}, {**DENSE, "label": label}])


def test_other_labels_in_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^sample 1: its label of 'score' is 0.25, expected 0 or"):
        read_tensors(tmp_path, {"label": np.array([1, 0.25])})
    with pytest.raises(InputError, match=r"labels of 'score': expected \[2\], got \[3\]"):
        read_tensors(tmp_path, {"label": np.zeros(3)})
    with pytest.raises(InputError, match=r"labels of 'score': expected \[2\], got \[2, 1\]"):
        read_tensors(tmp_path, {"label": np.zeros((2, 1))})


def test_an_id_outside_its_table_is_refused_with_its_place_in_the_file(tmp_path: Path) -> None:
    samples = [{**DENSE, "user": number} for number in range(1000)]
    assert read_json(tmp_path, samples).model_input.batch_size == 1000  # modulo takes any id
    samples[700]["clicked"] = 50
    with pytest.raises(InputError, match="'clicked', sample 700: id 50 is outside table 'ads'"):
        read_json(tmp_path, samples)
    outside = np.array([7, 1, -1, 29])
    with pytest.raises(InputError, match="'clicked', sample 1: id -1 is outside table 'ads'"):
        read_tensors(tmp_path, {"sparse.values": outside})


TWO = parse_spec({**FIELDS, "tower": {"outputs": ["click", "buy"]}})


def as_lists(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, list[float]]:
    return {output: array.tolist() for output, array in arrays.items()}


def test_a_label_column_is_that_of_every_output_without_its_own(tmp_path: Path) -> None:
    rows = [{**DENSE, "label": 1, "label.buy": 0}, {**DENSE, "label": 0, "label.buy": 1}]
    assert as_lists(read_json(tmp_path, rows, TWO).labels) == {"click": [1, 0], "buy": [0, 1]}
    both = read_json(tmp_path, [{**DENSE, "label": 1}], TWO)
    assert as_lists(both.labels) == {"click": [1], "buy": [1]}
    one = read_json(tmp_path, [{**DENSE, "label.buy": 1}, DENSE], TWO)
    assert list(one.labels) == ["buy"] and one.labelled == 1


def test_an_output_may_have_a_label_column_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "samples.tsv"
    path.write_text("age\tcontext\tbought\tlabel\n1\t2,3\t1\t0\n")
    read = read_calibration(TWO, path, {"buy": "bought"})
    assert as_lists(read.labels) == {"buy": [1], "click": [0]}
    with pytest.raises(InputError, match="^line 2: 'bought' is not one of the model's inputs"):
        read_calibration(TWO, path)
    path.write_text("age\tcontext\tbought\n1\t2,3\t5\n")
    with pytest.raises(InputError, match="^line 2, 'bought': expected 0 or 1, got"):
        read_calibration(TWO, path, {"buy": "bought"})


def test_reference_scores_are_read_by_output(tmp_path: Path) -> None:
    rows = [
        {**DENSE, "reference.click": 0.25, "reference.buy": [1, -2.5]},
        {**DENSE, "reference.click": 1, "reference.buy": [0, 3]},
    ]
    read = read_json(tmp_path, rows, TWO)
    assert as_lists(read.references) == {"click": [0.25, 1], "buy": [[1, -2.5], [0, 3]]}
    assert {array.dtype.name for array in read.references.values()} == {"float32"}
    assert not read.labels
    read = read_tsv(tmp_path, "reference\tage\tcontext", "0.5\t0\t0,0", "1.5\t0\t0,0")
    assert as_lists(read.references) == {"score": [0.5, 1.5]}
    read = read_tensors(tmp_path, {"reference.score": np.array([[1, 2], [3, 4]], np.float64)})
    assert as_lists(read.references) == {"score": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"reference": 1}, {}], "^sample 1, 'reference': expected the trained model's score, or"),
        ([{"reference": [1, 2]}, {"reference": 1}], "^sample 1, 'reference': expected 2 scores as"),
        ([{"reference": []}], "^sample 0, 'reference': expected the trained .* got none, or NaN"),
        ([{"reference": "high"}], "^sample 0, 'reference': expected the trained .* got 'high'"),
        ([{"reference": [True]}], "^sample 0, 'reference': expected the trained .* got .True"),
        ([{"reference": [int("9" * 400)]}], "^sample 0: its reference score of 'score' is inf, ex"),
        ([{"reference.scores": 1}], "^sample 0: 'reference.scores' is not one of"),
        ([{"label.clicks": 1}], "^sample 0: 'label.clicks' is not one of"),
    ],
)
def test_other_references_are_refused_with_their_sample(
    rows: list[dict[str, object]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read_json(tmp_path, [{**DENSE, **row} for row in rows])
