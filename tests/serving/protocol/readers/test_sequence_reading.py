from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.readers.unknown_ids import UnknownIds
from sharded_infer.client import Bags
from sharded_infer.client.request_message import request_message
from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.v1 import predictor_pb2
from tests.support.requests_by_chance import Arrays, check_same, serialized
from tests.support.sequences_by_chance import (
    MAX_BATCH,
    SPEC,
    as_predict,
    id_maps,
    sequences_by_chance,
)

MAPS = id_maps()
COUNTS = UnknownIds(SPEC), UnknownIds(SPEC)
PORTABLE = PortableReader(SPEC, max_batch=MAX_BATCH, id_maps=MAPS, unknown_ids=COUNTS[1])
NATIVE = NativeReader(SPEC, max_batch=MAX_BATCH, id_maps=MAPS, unknown_ids=COUNTS[0])
READER = InputReader(SPEC, max_batch=MAX_BATCH, id_maps=MAPS)
PRICE = np.ones((1, 1), np.float32)
GOOD: Arrays = {
    "price": PRICE,
    "candidate": np.array([1, 2]),
    "history": np.array([1, 8, 2]),
    "history.lengths": np.array([2, 1]),
    "action": np.array([4, 1, 9]),
    "age": np.array([0.5, -1.5, 2.5], np.float32),
    "pair": np.arange(6, dtype=np.float32).reshape(3, 2),
}


def native(message: bytes, form: MessageFormat = MessageFormat.INFER) -> Any:
    return NATIVE.read_message(message, form)


def values_of(found: ModelInput, name: str) -> list[list[int]]:
    """Ids of each bag of the first feature of a name."""
    at = [feature.name for feature in SPEC.input_features].index(name)
    (group,) = (group for group in found.groups if at in group.features)
    place = group.features.index(at)
    ends = np.cumsum(group.lengths.ravel()).reshape(group.lengths.shape)[place]
    begins = ends - group.lengths[place]
    return [group.values[a:b].tolist() for a, b in zip(begins, ends, strict=True)]


@settings(deadline=None, max_examples=60)
@given(sequences_by_chance())
def test_every_form_is_read_as_the_portable_path_reads_it(inputs: Arrays) -> None:
    message = serialized(inputs)
    found, wanted = native(message), PORTABLE.read_message(message)
    assert found is not None
    check_same(found, wanted)
    np.testing.assert_array_equal(COUNTS[0].cells, COUNTS[1].cells)


@settings(deadline=None, max_examples=60)
@given(sequences_by_chance())
def test_predict_is_read_as_the_protocols_form_is(inputs: Arrays) -> None:
    written = as_predict(inputs)
    wanted = PORTABLE.read_message(serialized(inputs))
    check_same(PORTABLE.read_message(written, form=MessageFormat.PREDICT), wanted)
    found = native(written, MessageFormat.PREDICT)
    assert found is not None
    check_same(found, wanted)
    COUNTS[0].cells[:] = COUNTS[1].cells[:] = 0


def test_what_is_left_out_of_a_sequence_keeps_its_place() -> None:
    found = native(serialized(GOOD))
    assert values_of(found, "history") == [[1, 8], [2]]
    assert values_of(found, "action") == [[4, -1], [-1]]
    assert found.ids_outside == 2  # 9 of the actions, and 8 in the table that takes the modulo
    bits = GOOD["age"].view(np.uint32)
    assert values_of(found, "age") == [bits[:2].tolist(), bits[2:].tolist()]
    assert [len(bag) for bag in values_of(found, "pair")] == [4, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pair": None}, "'pair' is missing: sequence 'history'"),
        ({"age.lengths": np.array([1, 2])}, "'age', sample 0: 1 long, but 'history'"),
        ({"pair": np.ones(6, np.float32)}, r"'pair': expected FP32 \[B, L, 2\]"),
        ({"history.lengths": np.array([2**62, 2**62])}, f"a length of {2**62}"),
        ({"age.lengths": np.array([2**63 - 1, 2**63 - 1, 5])}, f"a length of {2**63 - 1}"),
        ({"pair.lengths": np.full(4, 2**62 + 3)}, f"a length of {2**62 + 3}"),
        ({"history": np.array([1, 9, 2])}, "'history', sample 0: id 9 is outside"),
        ({"spent": np.ones(1, np.float32)}, "'query' is missing: sequence 'past'"),
    ],
)
def test_what_does_not_fit_is_said_by_the_portable_path(changes: Any, words: str) -> None:
    inputs = {name: one for name, one in {**GOOD, **changes}.items() if one is not None}
    message = serialized(inputs)
    assert native(message) is None
    with pytest.raises(RequestError, match=words):
        READER.read_message(message)


HISTORY = {
    "history": [1, 8, 2],
    "action": [4, 1, 9],
    "age": [0.5, -1.5, 2.5],
    "pair": np.arange(6.0).reshape(3, 2),
}


def test_a_users_history_is_sent_once() -> None:
    message = request_message("m", user={**HISTORY, "price": 1.0}, candidates={"candidate": [1, 2]})
    found = READER.read_message(message, form=MessageFormat.PREDICT)
    assert found.batch_size == 2
    assert values_of(found, "action") == [[4, -1, -1]]
    assert values_of(found, "pair") == [np.arange(6, dtype="f4").view(np.uint32).tolist()]
    infer = {name: np.array(one) for name, one in HISTORY.items()}
    infer = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in infer.items()}
    same = {name: array[None] for name, array in infer.items()}
    same |= {"price": PRICE, "candidate": np.array([1, 2])}
    check_same(found, PORTABLE.read_message(serialized(same)))


@pytest.mark.parametrize(
    ("user", "candidates", "words"),
    [
        ({**HISTORY, "age": [1.0]}, {}, "'age', sample 0: 1 long, but 'history'"),
        ({**HISTORY, "age": [1, 2, 3]}, {}, "'age' is numbers of a sequence: expected floats"),
        (
            {},
            {**HISTORY, "price": Bags([1.0, 2.0, 3.0], [1, 2, 0])},
            "'price': expected a row for each candidate, got lengths",
        ),
        (
            {},
            {"history": [[1, 2], [3]], "action": [[1, 2], [3]], "age": [[1.0], [2.0, 3.0]]},
            "'age', sample 0: 1 long, but 'history' of sequence 'history' is 2 long",
        ),
        (
            {"query": [1], "shop": [2]},
            {"candidate": [1, 2], "spent": [0.5, 1.5]},
            "'spent': 2 samples, but 'query' of the same sequence has 1",
        ),
    ],
)
def test_what_is_wrong_in_a_predict_call_is_refused_by_name(
    user: Any, candidates: Any, words: str
) -> None:
    if "price" not in candidates:
        user = {**user, "price": 1.0}
    message = request_message("m", user=user, candidates=candidates)
    with pytest.raises(RequestError, match=words):
        READER.read_message(message, form=MessageFormat.PREDICT)


@pytest.mark.parametrize(
    ("side", "values", "lengths", "words"),
    [
        ("candidates", 3, [], "the numbers of 3 ids cannot make equal bags of 2 candidates"),
        ("candidates", 3, [2**32 - 1, 4], f"a length of {2**32 - 1}, but numbers of 3 ids came"),
        ("candidates", 3, [1, 1], "the lengths sum to 2, but numbers of 3 ids came"),
        ("user", 1, [1], "'spent': the user's numbers are of one bag; lengths are for candidates"),
    ],
)
def test_numbers_of_other_clients_are_refused_by_name(
    side: str, values: int, lengths: list[int], words: str
) -> None:
    request = predictor_pb2.PredictRequest()
    request.user.dense.add(name="price", values=[1])
    request.candidates.sparse.add(name="query", ids=[1, 2])
    request.candidates.sparse.add(name="shop", ids=[1, 2])
    getattr(request, side).dense.add(name="spent", values=[0.5] * values, lengths=lengths)
    with pytest.raises(RequestError, match=words):
        READER.read_message(request.SerializeToString(), form=MessageFormat.PREDICT)
