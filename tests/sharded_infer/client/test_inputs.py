import itertools
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from kernels.ids.id_hash import StringHash, joined_strings
from kernels.ids.id_hash import hash_strings as hash_joined
from sharded_infer.client import Bags, hash_strings
from sharded_infer.client.request_message import request_message
from sharded_infer.errors import InputError, RequestError
from sharded_infer.v1 import predictor_pb2


def sent(**fields: Any) -> Any:
    return predictor_pb2.PredictRequest.FromString(request_message("m", **fields))


def candidate(value: Any) -> Any:
    (feature,) = sent(candidates={"f": value}).candidates.sparse
    return feature


def user(value: Any) -> Any:
    (feature,) = sent(user={"f": value}).user.sparse
    return feature


def test_one_id_a_candidate_goes_without_lengths() -> None:
    for ids in ([1, 2], np.array([1, 2], np.int32), torch.tensor([1, 2]), pd.Series([1, 2])):
        feature = candidate(ids)
        assert list(feature.ids) == [1, 2]
        assert not feature.lengths and not feature.ids_per_bag and not feature.long_ids


def test_sequences_of_different_lengths_are_bags() -> None:
    for rows in ([[1], [], [2, 3]], pd.Series([[1], [], [2, 3]]), ((1,), (), (2, 3))):
        feature = candidate(list(rows) if isinstance(rows, tuple) else rows)
        assert (list(feature.ids), list(feature.lengths)) == ([1, 2, 3], [1, 0, 2])


def test_a_user_has_one_bag() -> None:
    assert list(user(7).ids) == [7]
    assert list(user([7, 8]).ids) == [7, 8]
    assert list(user([[7, 8]]).ids) == [7, 8]
    weighted = user(Bags([7, 8], [2], [0.5, 2.0]))
    assert (list(weighted.ids), list(weighted.weights)) == ([7, 8], [0.5, 2.0])
    assert not weighted.lengths


def test_ids_that_need_eight_bytes_get_them() -> None:
    assert list(candidate([2**32 - 1, 0]).ids) == [2**32 - 1, 0]
    for ids in ([2**32, 0], [-1, 5]):
        feature = candidate(ids)
        assert list(feature.long_ids) == ids and not feature.ids


def strings(feature: Any) -> list[bytes]:
    assert not feature.ids and not feature.long_ids
    ends = np.cumsum([0, *feature.string_lengths]).tolist()
    assert ends[-1] == len(feature.strings)
    return [feature.strings[a:b] for a, b in itertools.pairwise(ends)]


def test_strings_are_sent_as_their_bytes() -> None:
    wanted = [b"", "größe".encode()]
    for ids in (
        ["", "größe"],
        wanted,
        np.array(["", "größe"]),
        np.array(wanted),
        np.array(["", "größe"], object),
        pd.Series(["", "größe"]),
        pd.Series(["", "größe"], dtype="string"),
        pd.Series(["", "größe"], dtype="category"),
        pl.Series(["", "größe"]),
    ):
        feature = candidate(ids)
        assert strings(feature) == wanted
        assert not feature.lengths and not feature.ids_per_bag
    # NumPy's own arrays of bytes would lose the zero.
    assert strings(candidate([b"a\0", b"b"])) == [b"a\0", b"b"]


def test_strings_have_the_forms_of_integers() -> None:
    matrix = candidate([["a", "b"], ["c", ""]])
    assert (strings(matrix), matrix.ids_per_bag) == ([b"a", b"b", b"c", b""], 2)
    for rows in ([["a"], [], ["b", "c\0"]], pd.Series([["a"], [], ["b", "c\0"]])):
        ragged = candidate(rows)
        assert (strings(ragged), list(ragged.lengths)) == ([b"a", b"b", b"c\0"], [1, 0, 2])
    frame = pl.DataFrame({"f": [["a"], [], ["b", "c\0"]]})
    (column,) = sent(candidates=frame).candidates.sparse
    assert (strings(column), list(column.lengths)) == ([b"a", b"b", b"c\0"], [1, 0, 2])
    bags = candidate(Bags(["a", "b"], [0, 2], [0.5, 2.0]))
    assert (strings(bags), list(bags.lengths)) == ([b"a", b"b"], [0, 2])
    assert list(bags.weights) == [0.5, 2.0]
    assert strings(user("a")) == [b"a"]
    assert strings(user(["a", b"b"])) == [b"a", b"b"]
    assert list(user([]).string_lengths) == []


def test_a_data_frame_has_rows_of_numbers_and_weights_as_samples_have() -> None:
    frame = pd.DataFrame({"item": [1, 2], "tags": [[1], [2, 3]]})
    frame["tags.weights"] = [[0.5], np.array([1.5, 2.5])]
    frame["item.weights"] = [2.0, 3.0]
    frame["mask"] = list(np.array([[1, 0, 0], [1, 1, 0]], np.float32))
    frame["price"] = [[0.5], [1.5]]
    request = sent(candidates=frame)
    assert [(f.name, list(f.ids), list(f.weights)) for f in request.candidates.sparse] == [
        ("item", [1, 2], [2.0, 3.0]),
        ("tags", [1, 2, 3], [0.5, 1.5, 2.5]),
    ]
    assert {d.name: list(d.values) for d in request.candidates.dense} == {
        "mask": [1, 0, 0, 1, 1, 0],
        "price": [0.5, 1.5],
    }


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"tags": [[1], [2, 3]], "tags.weights": [[1.0], [2.0]]},
            r"'tags': .* bags of \[1, 2\], g",
        ),
        ({"tags": [[1, 2], [3]], "tags.weights": [[1], [2, 3]]}, r"of \[2, 1\], got \[1, 2\]"),
        ({"price": [0.5, 1.5], "price.weights": [1.0, 1.0]}, "'price': weights are of ids"),
        ({"item": [1, 2], "item.weights": ["a", "b"]}, "'item': expected 2 weights.* got 2 of"),
        ({"mask": [[[1.0]], [1.0, 2.0]]}, "'mask': expected as many numbers for each id"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        sent(candidates=pd.DataFrame(columns))


def test_a_keyed_jagged_tensor_gives_an_input_a_key() -> None:
    sparse = pytest.importorskip("torchrec.sparse.jagged_tensor", reason="torchrec is not here")
    jagged = sparse.KeyedJaggedTensor(
        ["a", "b"],
        torch.tensor([1, 2, 3, 4]),
        torch.tensor([0.5, 1.0, 2.0, 4.0]),
        lengths=torch.tensor([2, 0, 1, 1]),
    )
    request = sent(candidates=[jagged, {"price": [0.5, 1.5]}])
    a, b = request.candidates.sparse
    assert (a.name, list(a.ids), list(a.lengths)) == ("a", [1, 2], [2, 0])
    assert list(a.weights) == [0.5, 1]
    assert (b.name, list(b.ids), list(b.lengths), list(b.weights)) == ("b", [3, 4], [1, 1], [2, 4])
    assert [d.name for d in request.candidates.dense] == ["price"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"candidates": {"f": [True]}}, "'f': expected integers, strings or floats, got bool"),
        ({"candidates": {"f": ["a", 1]}}, "'f': expected strings, got int among them"),
        ({"candidates": {"f": ["\ud800"]}}, "'f': a string is no text: surrogates"),
        ({"candidates": {"f": Bags(["a"], ["b"])}}, "'f': lengths must be integers, got object"),
        ({"candidates": {"f": "a"}}, r"'f': expected \[B\] or \[B, L\], got \[\]"),
        ({"candidates": {"f": np.zeros((1, 1, 1, 1))}}, r"'f': expected \[B\], \[B, K\] or"),
        ({"candidates": {"f": Bags([1, 2], [1])}}, "'f': the lengths add up to 1, .* 2 ids"),
        ({"candidates": {"f": Bags([1], [2, -1])}}, "'f': a length is negative: -1"),
        ({"candidates": {"f": Bags([1], [1], [1, 2])}}, "'f': 2 weights for 1 id"),
        ({"candidates": {"f": Bags([0.5], [1], [1])}}, "'f': weights are of ids"),
        (
            {"candidates": {"tags": [[1, 2], [3, 4]], "tags.weights": [1, 2, 3, 4]}},
            r"of \[2, 2\], got \[4\]",
        ),
        (
            {"candidates": {"tags": Bags([[0, 1], [2, 3]], [3, 1])}},
            r"values \[N\] of Bags, got \[2, 2\]",
        ),
        (
            {"candidates": {"tags": Bags([1, 2], [[1], [1]])}},
            r"lengths \[B\] of Bags, got \[2, 1\]",
        ),
        (
            {"candidates": {"tags": Bags([1, 2], [1, 1], [[1], [1]])}},
            r"weights \[N\] of Bags, got \[2, 1\]",
        ),
        ({"candidates": 5}, "expected a mapping of arrays by name.*got int"),
        ({"user": {"f": np.zeros((2, 2), np.int64)}}, "'f': a user has one bag"),
        ({"user": {"f": Bags([1, 2], [1, 1])}}, "'f': a user has one bag, got 2"),
        ({"user": {"f": np.zeros((2, 2, 2))}}, r"'f': expected \[K\], \[L, K\] or \[1, L, K\]"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        sent(**fields)


@pytest.mark.parametrize("nothing", [[], np.empty((0, 3), np.int64), Bags([], []), pd.Series([])])
def test_candidates_that_are_none_are_refused(nothing: Any) -> None:
    with pytest.raises(RequestError, match="there are no candidates: input 'item' is empty"):
        sent(candidates={"item": nothing})


@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 1), (1, 0, 1), (0, 2), (1, 0, 2)])
def test_a_history_without_positions_has_no_numbers(shape: tuple[int, ...]) -> None:
    [history, age] = sent(user={"history": [], "age": np.zeros(shape, np.float32)}).user.sparse
    assert (age.name, list(age.ids), list(history.ids)) == ("age", [], [])


@pytest.mark.parametrize("shape", [(1, 13), (2, 13), (4,), (1,)])
@pytest.mark.parametrize("items", [[1, 2, 3], [[1, 2]] * 3, [[], [1], [2, 3]]])
def test_a_dense_input_has_a_row_for_each_candidate(shape: tuple[int, ...], items: Any) -> None:
    with pytest.raises(RequestError, match=r"'dense': expected a row for each of 3 candidates"):
        sent(candidates={"item": items, "dense": np.zeros(shape, np.float32)})
    whole = sent(candidates={"item": items, "dense": np.zeros((3, 13), np.float32)})
    assert len(whole.candidates.dense[0].values) == 39


def test_a_routing_key_is_a_text_or_an_int64() -> None:
    assert sent(routing_key="user-7").text_key == "user-7"
    for number in (0, -1, 2**63 - 1):
        assert sent(routing_key=number).number_key == number
    assert sent().WhichOneof("routing_key") is None
    for wrong in (2**63, True):
        with pytest.raises(RequestError, match="routing_key: expected a text or an int64"):
            sent(routing_key=wrong)


@pytest.mark.parametrize("name", list(StringHash))
@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_text_is_hashed_as_its_bytes(name: StringHash, seed: int) -> None:
    words = ["", "a", "größe", "68fd1e64" * 40, "end\0"]
    encoded = [word.encode() for word in words]
    wanted = hash_joined(name, *joined_strings(encoded), seed).tolist()
    assert hash_strings(words, name.value, seed).tolist() == wanted
    assert hash_strings(encoded, name.value, seed).tolist() == wanted
    assert hash_strings(iter([]), name.value, seed).tolist() == []


def test_what_cannot_be_hashed_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="string hash 'md5': expected one of xxh3_64, murmur3"):
        hash_strings(["a"], "md5")
    with pytest.raises(InputError, match="expected an unsigned number of 32 bits, got 4294967296"):
        hash_strings(["a"], "murmur3_x64_128", 2**32)
    with pytest.raises(RequestError, match="strings: expected strings, got int among them"):
        hash_strings(["a", 7])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="strings: a string is no text: surrogates"):
        hash_strings(["\ud800"])
