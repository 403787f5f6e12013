"""Compiled decoding: accepted messages are read as by the portable path, array for array."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from serving.protocol.message_size import INFER_LIMITS
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.support.requests_by_chance import (
    MAX_BATCH,
    SPEC,
    Arrays,
    check_same,
    inputs_by_chance,
    serialized,
)
from tests.support.steps_by_chance import IDS, row_of, steps_by_chance

POLICIES = ("error", "ignore", "modulo")
PORTABLE = PortableReader(SPEC, max_batch=MAX_BATCH)
DENSE: Arrays = {
    "context": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bid": np.ones((1, 1), np.float32),
}
GOOD: Arrays = {**DENSE, "item": np.array([1, 2]), "hashed": np.array([[8], [-1]])}
NATIVE = NativeReader(SPEC, max_batch=MAX_BATCH)


def native(message: bytes) -> Any:
    return NATIVE.read_message(message)


def check_agrees(message: bytes) -> bool:
    """True if compiled code accepts a message, which it then reads as the portable path does."""
    found = native(message)
    if found is not None:
        check_same(found, PORTABLE.read_message(message))
    return found is not None


@settings(deadline=None, max_examples=120)
@given(inputs_by_chance())
def test_every_form_is_read_as_the_portable_path_reads_it(inputs: Arrays) -> None:
    assert check_agrees(serialized(inputs))


TABLE = TableSpec("item", rows=9, dim=1, out_of_range="modulo", padding_idx=2)


@settings(deadline=None, max_examples=200)
@given(steps_by_chance(), st.lists(IDS, min_size=1, max_size=MAX_BATCH), st.sampled_from(POLICIES))
def test_steps_of_ids_are_those_of_integers(steps: Any, ids: list[int], policy: Any) -> None:
    table = replace(TABLE, out_of_range=policy)
    stepped = replace(table, id_steps={"item": tuple(steps)})
    expected, portable = (
        PortableReader(ModelSpec("small", (each,)), max_batch=MAX_BATCH)
        for each in (table, stepped)
    )
    reader = NativeReader(ModelSpec("small", (stepped,)), max_batch=MAX_BATCH)
    sent = serialized({"item": np.array(ids, np.int64)})
    rows = serialized({"item": np.array([row_of(id_, steps) for id_ in ids], np.int64)})
    found = reader.read_message(sent)
    if found is None:
        for read, message in ((portable, sent), (expected, rows)):
            with pytest.raises(RequestError, match="is outside table 'item'"):
                read.read_message(message)
        return
    check_same(found, portable.read_message(sent))
    check_same(found, expected.read_message(rows))


REQUIRED = ("item", "tag", "user.country")
REQUIRING = replace(
    SPEC,
    tables=tuple(
        replace(table, required=tuple(name for name in table.features if name in REQUIRED) or None)
        if table.features
        else replace(table, required=table.name in REQUIRED)
        for table in SPEC.tables
    ),
)


@settings(deadline=None, max_examples=100)
@given(inputs_by_chance())
def test_a_required_feature_is_missed_by_both_readers(inputs: Arrays) -> None:
    message = serialized(inputs)
    reader = NativeReader(REQUIRING, max_batch=MAX_BATCH)
    portable = PortableReader(REQUIRING, max_batch=MAX_BATCH)
    missing = [name for name in REQUIRED if name not in inputs and "sparse.values" not in inputs]
    found = reader.read_message(message)
    assert (found is None) == bool(missing)
    if found is not None:
        check_same(found, portable.read_message(message))
    else:
        with pytest.raises(RequestError, match="is missing: the model requires it") as refusal:
            portable.read_message(message)
        assert any(repr(name) in str(refusal.value) for name in missing)


def outcome(read: Callable[..., Any], sent: object) -> int | str:
    """The batch size of a request, or the words of its refusal."""
    try:
        return int(read(sent).batch_size)
    except RequestError as error:
        return str(error)


EDITS: dict[str, Callable[[Any], object]] = {
    "typed contents beside raw ones": lambda r: r.inputs.add(
        name="clicked", datatype="INT64", shape=[2], contents={"int64_contents": [1, 2]}
    ),
    "contents of one too few": lambda r: r.raw_input_contents.pop(),
    "no inputs": lambda r: (r.ClearField("inputs"), r.ClearField("raw_input_contents")),
    "a tensor's parameter": lambda r: r.inputs[0].parameters["x"].__setattr__("int64_param", 1),
    "an output's parameter": lambda r: (
        r.outputs.add(name="score").parameters["classification"].__setattr__("int64_param", 1)
    ),
    "a text that is not ASCII": lambda r: setattr(r, "id", "é"),
    "an unknown name": lambda r: setattr(r.inputs[2], "name", "itm"),
    "a companion without its feature": lambda r: setattr(r.inputs[2], "name", "item.lengths"),
    "a dense companion": lambda r: setattr(r.inputs[2], "name", "context.lengths"),
    "a name twice": lambda r: setattr(r.inputs[2], "name", "hashed"),
    "another datatype": lambda r: setattr(r.inputs[2], "datatype", "UINT64"),
    "ids that are floats": lambda r: setattr(r.inputs[2], "datatype", "FP32"),
    "no shape": lambda r: r.inputs[2].ClearField("shape"),
    "three sizes": lambda r: r.inputs[2].shape.extend([1, 1]),
    "another size": lambda r: r.inputs[2].shape.__setitem__(0, 3),
    "a dense input of another width": lambda r: r.inputs[0].shape.__setitem__(slice(None), [3, 2]),
    "a dense input missing": lambda r: (r.inputs.pop(1), r.raw_input_contents.pop(1)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_unusual_is_left_to_the_portable_path(edit: str) -> None:
    request = service_pb2.ModelInferRequest.FromString(serialized(GOOD))
    EDITS[edit](request)
    message = bytes(request.SerializeToString())
    assert native(message) is None
    reader = InputReader(SPEC, max_batch=MAX_BATCH)
    assert outcome(reader.read_message, message) == outcome(PORTABLE.read_message, message)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"item": np.array([1, 9])}, "'item', sample 1: id 9 is outside"),
        ({"item": np.array([1, 2, 3])}, "2 samples, but .item. has 3"),
        ({"item": np.array([1]), "item.lengths": np.array([1, 1])}, "sum to 2, but 1"),
        (
            {"item": np.array([1]), "item.lengths": np.array([2**63 - 1, -(2**63)])},
            f"a length of {-(2**63)}",
        ),
        (
            {"sparse.values": np.zeros(5, np.int64), "sparse.lengths": np.ones((6, 2), np.int64)},
            "sum to 12, but 5 ids",
        ),
        # Inputs are counted, not the tables that look them up.
        (
            {"sparse.values": np.zeros(20, np.int64), "sparse.lengths": np.ones((10, 2), np.int64)},
            r"expected INT32 or INT64 \[6, B\]",
        ),
    ],
)
def test_what_is_wrong_is_said_by_the_portable_path(inputs: Arrays, words: str) -> None:
    message = serialized({**DENSE, **inputs})
    assert native(message) is None
    with pytest.raises(RequestError, match=words):
        InputReader(SPEC, max_batch=MAX_BATCH).read_message(message)


def test_a_result_outlives_its_message_and_later_requests() -> None:
    message = serialized(GOOD)
    first = native(message)
    kept = [first.groups[0].values.copy(), first.dense[0].copy()]
    other = {**GOOD, "item": np.array([7, 8]), "context": np.full((2, 3), 9, np.float32)}
    native(serialized(other))
    del message
    assert np.array_equal(first.groups[0].values, kept[0])
    assert np.array_equal(first.dense[0], kept[1])


def test_threads_decode_side_by_side() -> None:
    messages = [
        serialized({**DENSE, "item": np.array([i % 9, 1]), "hashed": np.array([i])})
        for i in range(40)
    ]
    wanted = [PORTABLE.read_message(message) for message in messages]

    def read(first: int) -> None:
        for turn in range(400):
            at = (first + turn) % len(messages)
            check_same(native(messages[at]), wanted[at])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(0, 28, 7)))


def test_contents_beside_raw_contents_are_refused_by_name() -> None:
    request = service_pb2.ModelInferRequest.FromString(serialized(GOOD))
    request.inputs[2].contents.int64_contents.append(7)
    reader = InputReader(SPEC, max_batch=MAX_BATCH)
    with pytest.raises(
        RequestError, match="input 'item': expected data in one place, got contents"
    ):
        reader.read_message(request.SerializeToString())


def test_typed_contents_are_read_up_to_the_limit_of_a_messages_numbers() -> None:
    spec = ModelSpec("one", (TableSpec("item", rows=9, dim=1),))
    native, portable = (Reader(spec, max_batch=1) for Reader in (NativeReader, PortableReader))
    # Others are of shapes and of the length.
    most = INFER_LIMITS.numbers - 4
    for count in (most, most + 1):
        request = service_pb2.ModelInferRequest()
        request.inputs.add(
            name="item",
            datatype="INT64",
            shape=[1, count],
            contents={"int64_contents": [1] * count},
        )
        request.inputs.add(
            name="item.lengths", datatype="INT64", shape=[1], contents={"int64_contents": [count]}
        )
        message = request.SerializeToString()
        found = native.read_message(message)
        if count > most:
            assert found is None
            with pytest.raises(RequestTooLargeError, match="numbers"):
                portable.read_message(message)
        else:
            assert found is not None
            check_same(found, portable.read_message(message))


def test_contents_of_another_datatype_are_refused_by_field() -> None:
    request = service_pb2.ModelInferRequest()
    tensor = request.inputs.add(name="item", datatype="INT64", shape=[1])
    reader = InputReader(SPEC, max_batch=MAX_BATCH)
    for field, words in (
        ("int_contents", "got int_contents"),
        ("int64_contents", "got int_contents and int64_contents"),
    ):
        getattr(tensor.contents, field).append(1)
        words = f"input 'item': expected int64_contents alone, .* INT64, {words}$"
        with pytest.raises(RequestError, match=words):
            reader.read_message(request.SerializeToString())


def test_weights_of_inputs_that_have_none_are_refused_by_table_unless_all_are_one() -> None:
    tables = [replace(t, weighted=False) if t.name == "deep" else t for t in SPEC.tables]
    reader = InputReader(replace(SPEC, tables=tuple(tables)), max_batch=MAX_BATCH)
    ones, others = np.ones(2, np.float32), np.array([1, 10], np.float32)
    alone = PORTABLE.read_message(serialized({**GOOD, "item.weights": ones}))
    check_same(reader.read_message(serialized({**GOOD, "item.weights": ones})), alone)
    counts = np.array([[2], [0], [0], [0], [0], [1]])
    both = {**DENSE, "context": DENSE["context"][:1], "sparse.lengths": counts}
    at_once: Arrays = {**both, "sparse.values": np.array([1, 2, 3])}
    for name, inputs in (
        ("item", {**GOOD, "item.weights": others}),
        ("item", {**at_once, "sparse.weights": np.array([1, 10, 1], np.float32)}),
        ("tag", {**at_once, "sparse.weights": np.array([1, 1, 10], np.float32)}),
    ):
        with pytest.raises(RequestError, match=f"weights of '{name}': table 'deep' .*, got 10"):
            reader.read_message(serialized(inputs))
    weighted = {**GOOD, "lenient": np.array([0, 2]), "lenient.weights": others}
    check_same(reader.read_message(serialized(weighted)), native(serialized(weighted)))


def test_a_model_of_many_features_finds_each_by_name() -> None:
    names = [f"f{'x' * (i % 23)}{i}" for i in range(300)]
    spec = ModelSpec("wide", tuple(TableSpec(name, i + 1, 1) for i, name in enumerate(names)))
    inputs = {name: np.array([i, 0]) for i, name in enumerate(names)}
    shuffled = {name: inputs[name] for name in np.random.default_rng(0).permutation(names)}
    found = NativeReader(spec, max_batch=2).read_message(serialized(shuffled))
    assert found is not None
    assert found.groups[0].values.reshape(300, 2)[:, 0].tolist() == list(range(300))
