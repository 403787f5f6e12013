from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sharded_infer.errors import RequestError
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.specs.spec_file import dump_spec, parse_spec
from tests.sharded_infer.inputs.bags import bags_of

Arrays = dict[str, NDArray[Any]]

SPEC = ModelSpec(
    "ranker",
    (TableSpec("item", 50, 8, features=("candidate", "history")), TableSpec("action", 4, 4)),
    dense=DenseSpec({"price": 1}),
    tower=TowerSpec(user_inputs=("history",)),
    sequences={"history": SequenceSpec(6, ("history", "action"), {"age": 1, "place": 2})},
)
LENGTHS = np.array([3, 0, 2], np.int32)
IDS = np.array([7, 8, 9, 1, 2], np.int64)
AGES = np.array([0.5, 1.5, 2.5, 3.5, 4.5], np.float32)
PLACES = np.arange(10, dtype=np.float32).reshape(5, 2)


def request(**changes: NDArray[Any] | None) -> Arrays:
    arrays = {
        "candidate": np.array([1, 2, 3]),
        "price": np.ones((3, 1), np.float32),
        "history": IDS,
        "history.lengths": LENGTHS,
        "action": IDS % 4,
        "age": AGES,
        "place": PLACES,
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def test_the_spec_is_written_and_read_back() -> None:
    assert parse_spec(dump_spec(SPEC)) == SPEC
    assert [f.name for f in SPEC.features] == ["candidate"]
    for feature, name in zip(SPEC.sequence_features, ("history", "action"), strict=True):
        assert (feature.name, feature.sequence) == (name, "history")
    assert SPEC.tower_sequences["history"].width == 12
    assert SPEC.sequence_numbers == {"age": 1, "place": 2}


def test_numbers_are_kept_as_bits() -> None:
    names = [feature.name for feature in SPEC.input_features]
    by_name = dict(zip(names, bags_of(make_input(SPEC, request())), strict=True))
    for name, numbers in (("age", AGES), ("place", PLACES.ravel())):
        bits = np.array([value for ids, _ in by_name[name] for value in ids], np.uint32)
        assert (bits.view(np.float32) == numbers).all()


@pytest.mark.parametrize("form", ["own lengths", "padded"])
def test_every_form_reads_the_same(form: str) -> None:
    arrays = request()
    if form == "own lengths":
        members = ("history", "action", "age", "place")
        arrays |= {f"{name}.lengths": LENGTHS for name in members}
    else:
        there = np.arange(4) < LENGTHS[:, None]
        for name in ("history", "action", "age", "place"):
            padded = np.full((3, 4, *arrays[name].shape[1:]), 3, arrays[name].dtype)
            padded[there] = arrays[name]
            arrays[name] = padded
    found, expected = make_input(SPEC, arrays), make_input(SPEC, request())
    for one, other in zip(found.groups, expected.groups, strict=True):
        assert np.array_equal(one.values, other.values)
        assert np.array_equal(one.lengths, other.lengths)


def test_a_shared_sequence_is_kept_once() -> None:
    arrays = request(history=IDS[None], action=IDS[None] % 4, age=AGES[None], place=PLACES[None])
    del arrays["history.lengths"]
    own, shared = make_input(SPEC, arrays).groups
    assert own.features == (0,)
    assert shared.lengths.tolist() == [[5], [5], [5], [10]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action": None}, "'action' is missing: sequence 'history'"),
        ({"age": None}, "'age' is missing: sequence 'history'"),
        ({"action": IDS[:4] % 4}, "the lengths sum to 5, but 4 ids came"),
        ({"place": PLACES[:, :1]}, r"'place': expected FP32 \[B, L, 2\]"),
        (
            {"action.lengths": np.array([2, 1, 2], np.int32)},
            "'action', sample 0: 2 long, but 'history' of sequence 'history' is 3 long",
        ),
        (
            {"action": np.array([[1, 2, 3, 1, 2]]), "history.lengths": None},
            "'action': 1 sample, but 'history' of the same sequence has 5",
        ),
        ({"history.weights": AGES}, "weights of 'history': it is of sequence 'history', exp"),
        ({"history.weights": np.ones_like(AGES)}, "'history.weights' is not one of the model's"),
        ({"history.lengths": np.array([3, -1, 2])}, "a length of -1"),
        (
            {"history": np.ones((3, 2), np.int64), "age": None, "place": None},
            "a length of 3, but 'history' has 2 ids a sample",
        ),
        ({"sparse.values": IDS, "sparse.lengths": np.ones((3, 1))}, "send each input by name"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    changes: dict[str, NDArray[Any] | None], words: str
) -> None:
    arrays = request(**changes)
    if "sparse.values" in arrays:
        arrays = {name: arrays[name] for name in ("price", "sparse.values", "sparse.lengths")}
    with pytest.raises(RequestError, match=words):
        make_input(SPEC, arrays)


def test_numbers_that_are_not_finite_are_refused() -> None:
    ages = AGES.copy()
    ages[2] = np.nan
    with pytest.raises(RequestError, match="'age': expected finite numbers, got nan"):
        FiniteCheck(SPEC).check(make_input(SPEC, request(age=ages)))


def test_weights_of_a_sequences_ids_are_refused_beside_all_ids() -> None:
    table = TableSpec("item", 9, 4, features=("candidate", "seen"))
    spec = ModelSpec("watched", (table,), sequences={"history": SequenceSpec(4, ("seen",))})
    arrays = {
        "sparse.values": np.arange(3),
        "sparse.lengths": np.array([[1], [2]]),
        "sparse.weights": np.array([5, 1, 7], np.float32),
    }
    with pytest.raises(RequestError, match="'seen': it is of sequence 'history', .*got 7"):
        make_input(spec, arrays)
    make_input(spec, {**arrays, "sparse.weights": np.array([5, 1, 1], np.float32)})
