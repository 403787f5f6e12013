from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.inputs.request_reader import RequestReader, make_input
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec
from tests.sharded_infer.inputs.bags import Bag, bags_of

Arrays = dict[str, NDArray[np.generic]]
SPEC = ModelSpec(
    "request",
    (TableSpec("ads", 9, 2, features=("shown", "clicked")), TableSpec("user", 9, 2)),
    DenseSpec({"context": 3}),
)
NO_DENSE = ModelSpec("request", SPEC.tables)
FEATURES = ("shown", "clicked", "user")
B = 4


def dense(batch: int = B) -> Arrays:
    return {"context": np.arange(3 * batch, dtype=np.float32).reshape(batch, 3)}


def ids(*shape: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 9, shape)


def scales(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def read(**inputs: NDArray[np.generic]) -> list[list[Bag]]:
    """Bags of a request whose input names have `__` for `.`."""
    named = {name.replace("__", "."): array for name, array in inputs.items()}
    model_input = make_input(SPEC, dense() | named)
    assert model_input.batch_size == B
    assert all(group.weights is None for group in model_input.groups)
    return bags_of(model_input)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("of_lengths", [np.int64, np.int32])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("per_sample", [1, 3])
def test_every_form_of_a_request_gives_the_same_bags(
    dtype: type[np.generic], of_lengths: type[np.generic], weighted: bool, per_sample: int
) -> None:
    rows = {name: ids(B, per_sample, seed=i).astype(dtype) for i, name in enumerate(FEATURES)}
    weights = {name: scales(B, per_sample, seed=i) for i, name in enumerate(FEATURES)}
    jagged: Arrays = {}
    matrix: Arrays = dict(rows)
    for name in FEATURES:
        jagged[name] = rows[name].reshape(-1)
        jagged[f"{name}.lengths"] = np.full(B, per_sample, of_lengths)
        if weighted:
            matrix[f"{name}.weights"] = weights[name]
            jagged[f"{name}.weights"] = weights[name].reshape(-1)
    at_once: Arrays = {
        "sparse.values": np.concatenate([rows[name].reshape(-1) for name in FEATURES]),
        "sparse.lengths": np.full((3, B), per_sample, of_lengths),
    }
    if weighted:
        flat = [weights[name].reshape(-1) for name in FEATURES]
        at_once["sparse.weights"] = np.concatenate(flat)
    forms = [matrix, jagged, at_once]
    if per_sample == 1:
        forms.append({name: array.reshape(-1) for name, array in matrix.items()})
    if not weighted:
        weights = {name: np.ones((B, per_sample), np.float32) for name in FEATURES}
    wanted = [
        list(zip(rows[name].tolist(), weights[name].tolist(), strict=True)) for name in FEATURES
    ]
    for form in forms:
        model_input = make_input(SPEC, dense() | form)
        assert bags_of(model_input) == wanted
        (group,) = model_input.groups
        assert group.values.dtype == np.int64 and (group.weights is not None) == weighted
        assert np.array_equal(model_input.dense[0], dense()["context"])


def test_forms_may_be_mixed_by_feature() -> None:
    shown, clicked = ids(B), ids(6, seed=1)
    lengths = np.array([3, 0, 2, 1])
    assert read(shown=shown, clicked=clicked, clicked__lengths=lengths, user=ids(B, 2)) == [
        [([i], [1]) for i in shown.tolist()],
        [(bag.tolist(), [1] * len(bag)) for bag in np.split(clicked, [3, 3, 5])],
        [(bag, [1, 1]) for bag in ids(B, 2).tolist()],
    ]


@pytest.mark.parametrize("present", [(), ("shown",), ("user",), ("shown", "user")])
def test_a_feature_left_out_is_empty_bags(present: tuple[str, ...]) -> None:
    found = read(**{name: ids(B) for name in present})
    for name, of_feature in zip(FEATURES, found, strict=True):
        assert [len(values) for values, _ in of_feature] == [1 if name in present else 0] * B


@pytest.mark.parametrize(
    "inputs",
    [{"shown": ids(1)}, {"shown": ids(1, 1)}, {"shown": ids(1), "shown.lengths": np.array([1])}],
)
def test_one_sample_is_shared_by_all_and_kept_once(inputs: Arrays) -> None:
    model_input = make_input(SPEC, dense() | inputs | {"user": ids(B)})
    assert sorted(group.batch_size for group in model_input.groups) == [1, B]
    assert bags_of(model_input)[0] == [(ids(1).tolist(), [1])] * B


def test_a_request_of_shared_features_only_has_the_batch_of_its_dense_input() -> None:
    model_input = make_input(SPEC, dense() | {"shown": ids(1, 2), "user": ids(1)})
    assert model_input.batch_size == B
    assert [group.batch_size for group in model_input.groups] == [1]


LENGTHS = np.array([2, 1, 1, 2], np.int32)
AT_ONCE: Arrays = {"sparse.values": ids(12), "sparse.lengths": np.ones((3, B), np.int32)}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        # Names.
        ({"usr": ids(B)}, "'usr' is not one of the model's: .*; did you mean 'user'?"),
        ({"user.length": LENGTHS}, "'user.length' is not one of .*; did you mean 'user.lengths'"),
        ({"usage": ids(B)}, "'usage' is not one of the model's: [a-z., ]+$"),
        ({"user.lengths": LENGTHS}, "'user.lengths' came without 'user'"),
        ({"user.weights": scales(B)}, "'user.weights' came without 'user'"),
        ({"sparse.lengths": np.ones((3, B), np.int32)}, "'sparse.values' is missing"),
        ({"sparse.values": ids(3)}, "'sparse.lengths' is missing"),
        (AT_ONCE | {"user": ids(B)}, "'user' cannot stand beside 'sparse.values'"),
        # Dtypes.
        ({"user": scales(B)}, "'user': expected INT64 or INT32, got float32"),
        ({"user": ids(B).astype(">i8")}, "'user': expected INT64 or INT32, got >i8"),
        ({"user": ids(B), "user.weights": ids(B)}, "'user.weights': expected FP32, got int64"),
        ({"context": ids(B, 3)}, "'context': expected FP32, got int64"),
        # Shapes.
        ({"user": ids(B, 1, 1)}, r"'user': expected \[B\] or \[B, L\], got \[4, 1, 1\]"),
        ({"user": ids(B, 1), "user.lengths": LENGTHS}, "but 'user' has 1 id a sample"),
        (
            {"user": ids(6), "user.lengths": LENGTHS[None]},
            r"lengths': expected INT32 or INT64 \[B\], got \[1, 4\]",
        ),
        (
            {"user": ids(B, 2), "user.weights": scales(B * 2)},
            r"'user.weights': expected FP32 \[4, 2\] like its ids, got \[8\]",
        ),
        ({"context": scales(B)}, r"'context': expected FP32 \[B, 3\], got \[4\]"),
        ({"context": scales(B, 2)}, r"'context': expected FP32 \[B, 3\], got \[4, 2\]"),
        (AT_ONCE | {"sparse.lengths": ids(2, B)}, r"expected INT32 or INT64 \[3, B\], got \[2"),
        (AT_ONCE | {"sparse.values": ids(4, 3)}, r"sparse.values': .*INT64 or INT32 \[N\], got"),
        (AT_ONCE | {"sparse.weights": scales(11)}, r"'sparse.weights': expected FP32 \[12\]"),
        # Lengths.
        ({"user": ids(5), "user.lengths": LENGTHS}, "'user.lengths': .* sum to 6, but 5 ids came"),
        (
            {"user": ids(2), "user.lengths": np.array([-1, 1, 1, 1])},
            "'user.lengths': a length of -1, expected 0 or more",
        ),
        (
            {"user": ids(1), "user.lengths": np.array([2**62, 2**62, 2**62, 2**62 + 1])},
            "'user.lengths': a length of .*, but 1 id came",
        ),
        (AT_ONCE | {"sparse.values": ids(11)}, "'sparse.lengths': .* sum to 12, but 11 ids came"),
        # Batches.
        ({"user": ids(3)}, "'user': 3 samples, but 'context' has 4; expected 4, or 1 to share it"),
        ({"user": ids(5)}, "'context': 4 samples, but 'user' has 5"),
        (
            {"sparse.values": ids(6), "sparse.lengths": np.ones((3, 2), np.int32)},
            "'sparse.lengths': 2 samples, but 'context' has 4",
        ),
    ],
)
def test_a_malformed_input_is_refused_by_name(inputs: Arrays, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make_input(SPEC, dense() | inputs)


@pytest.mark.parametrize(
    ("spec", "inputs", "words"),
    [
        (SPEC, {}, "the request has no inputs"),
        (NO_DENSE, {}, "the request has no inputs"),
        (SPEC, {"user": ids(B)}, r"'context' is missing: expected FP32 \[B, 3\]"),
        (SPEC, dense(0), "the request is empty: input 'context' has no samples"),
        (NO_DENSE, {"user": ids(0)}, "the request is empty: input 'user' has no samples"),
        (NO_DENSE, {"user.lengths": LENGTHS}, "'user.lengths' came without 'user'"),
        (
            NO_DENSE,
            {"sparse.values": ids(0), "sparse.lengths": np.ones((3, 0), np.int32)},
            "the request is empty: input 'sparse.lengths' has no samples",
        ),
    ],
)
def test_an_incomplete_request_is_refused(
    spec: ModelSpec, inputs: Mapping[str, NDArray[np.generic]], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        make_input(spec, inputs)


def test_more_samples_than_allowed_are_refused() -> None:
    reader = RequestReader(SPEC, max_batch=B)
    assert reader.read(dense()).batch_size == B
    with pytest.raises(RequestTooLargeError, match="the request has 5 samples, at most 4"):
        reader.read(dense(5))
    with pytest.raises(RequestTooLargeError, match="the request has 5 samples, at most 4"):
        reader.read(dense(1) | {"user": ids(5)})


@pytest.mark.parametrize("samples", [2**34, 2**50])
def test_samples_without_a_byte_of_ids_are_refused_before_any_memory_is_taken(samples: int) -> None:
    nothing = np.empty((samples, 0), np.int64)
    with pytest.raises(RequestTooLargeError, match=f"the request has {samples} samples"):
        RequestReader(SPEC, max_batch=B).read(dense(1) | {"user": nothing})


def test_reading_does_not_write_to_what_came() -> None:
    inputs: Arrays = dense() | {
        "user": ids(B),
        "shown": ids(6),
        "shown.lengths": LENGTHS.copy(),
        "shown.weights": scales(6),
    }
    for array in inputs.values():
        array.setflags(write=False)
    make_input(SPEC, inputs)
