import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.http_api.infer_request import read_document
from serving.http_api.json_codec import read_request
from serving.http_api.usual_body import UsualBody, read_usual
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.request_tensors import RequestTensors
from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import ModelInput
from tests.support.requests_by_chance import (
    DATATYPES,
    MAX_BATCH,
    SPEC,
    Arrays,
    check_same,
    inputs_by_chance,
)

READER = InputReader(SPEC, max_batch=MAX_BATCH)
PORTABLE = PortableReader(SPEC, max_batch=MAX_BATCH)
INPUTS: Arrays = {
    "context": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bid": np.ones((1, 1), np.float32),
    "item": np.array([1, 2]),
}
ASKED: dict[str, Any] = {
    "id": "7",
    "outputs": [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}],
    "parameters": {"binary_data_output": True, "priority": 2, "timeout": 90, "routing_key": 7},
}


def document(inputs: Arrays) -> dict[str, Any]:
    entries = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": DATATYPES[array.dtype.name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    return deepcopy(ASKED) | {"inputs": entries}


def binary(inputs: Arrays) -> bytes:
    return b"".join(array.tobytes() for array in inputs.values())


def shuffled(value: Any, seed: int) -> Any:
    """The same document with reordered members of its objects."""
    if isinstance(value, list):
        return [shuffled(item, seed + i) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    order = np.random.default_rng(seed).permutation(len(value))
    members = list(value.items())
    return {members[i][0]: shuffled(members[i][1], seed) for i in order}


def portable(text: bytes, tensors: bytes) -> ModelInput:
    return PORTABLE.read_tensors(read_document("m", "", text + tensors, len(text)).inputs)


def check_agrees(text: bytes, tensors: bytes) -> UsualBody | None:
    """The body, if compiled code accepts its header: then both readers must agree."""
    found = read_usual("m", "3", text + tensors, len(text))
    if found is None:
        return None
    batch = READER.read_body(text + tensors, len(text))
    if batch is not None:
        check_same(batch, portable(text, tensors))
    try:
        other = read_document("m", "3", text + tensors, len(text))
    except RequestError:
        # The tensors' sizes are wrong, and the batch is not read.
        assert batch is None
        return found
    assert found.header() == other.header()
    names = ("a", "b", "c")
    assert [found.forms.is_binary(n) for n in names] == [other.forms.is_binary(n) for n in names]
    return found


@settings(deadline=None, max_examples=100)
@given(inputs_by_chance(), st.integers(0, 2**32), st.sampled_from([None, 1, "\t"]))
def test_bodies_are_read_as_they_are_tensor_by_tensor(
    inputs: Arrays, seed: int, indent: int | str | None
) -> None:
    text = json.dumps(shuffled(document(inputs), seed), indent=indent).encode()
    found = check_agrees(text, binary(inputs))
    assert found is not None
    batch = READER.read_body(found.body, found.json_bytes)
    assert batch is not None
    check_same(batch, portable(text, binary(inputs)))
    check_same(found.decode(READER, RequestTensors(None)), batch)


@settings(deadline=None, max_examples=100)
@given(inputs_by_chance(), st.integers(0, 2**32))
def test_changed_bytes_are_never_read_differently(inputs: Arrays, seed: int) -> None:
    generator = np.random.default_rng(seed)
    text = np.frombuffer(json.dumps(document(inputs)).encode(), np.uint8)
    likely = np.frombuffer(b'{}[]":,0129-.e \\truefalsn\xc3', np.uint8)
    for _ in range(30):
        changed = text.copy()
        places = generator.integers(0, len(text), generator.integers(1, 4))
        changed[places] = generator.choice(likely, len(places))
        start = generator.integers(0, len(text))
        gap = generator.integers(0, 3)
        check_agrees(np.delete(changed, slice(start, start + gap)).tobytes(), binary(inputs))


def first_input(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["inputs"][0].update(members)


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a member that is not known": lambda body: body.update(more=1),
    "no inputs": lambda body: body.pop("inputs"),
    "a label": lambda body: body["parameters"].update(label="stable"),
    "a priority below 0": lambda body: body["parameters"].update(priority=-1),
    "a fraction": lambda body: body["parameters"].update(timeout=1.5),
    "an output's region": lambda body: body["outputs"][1].update(
        parameters={"shared_memory_region": "r"}
    ),
    "seventeen outputs": lambda body: body.update(outputs=[{"name": "a"}] * 17),
    "an escape": first_input(name="cont\next"),
    "data": first_input(data=[1], parameters={}),
    "an input's region": first_input(
        parameters={"shared_memory_region": "r", "shared_memory_byte_size": 24}
    ),
    "an unknown datatype": first_input(datatype="FP16"),
    "three sizes": first_input(shape=[1, 2, 3]),
    "a size beyond all memory": first_input(shape=[2**31, 3]),
    "more bytes than come": first_input(parameters={"binary_data_size": 25}),
    "an input of another model": first_input(name="other"),
    "an input twice": lambda body: body["inputs"].append(body["inputs"][0]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_unusual_is_left_to_the_reader_of_tensors(edit: str) -> None:
    body = document(INPUTS)
    EDITS[edit](body)
    text = json.dumps(body, ensure_ascii=False).encode()
    found = check_agrees(text, binary(INPUTS))
    assert found is None or READER.read_body(found.body, found.json_bytes) is None

    def outcome(read: Callable[..., Any]) -> object:
        try:
            request = read("m", "3", text + binary(INPUTS), len(text))
            return request.header(), request.decode(READER, RequestTensors(None)).batch_size
        except RequestError as error:
            return str(error)

    assert outcome(read_request) == outcome(read_document)


def test_what_is_no_request_is_not_read() -> None:
    for text in ("", "[]", '{"a":1} x', '{"id":"1","id":"1"}', '{"id":"\x01"}'):
        assert read_usual("m", "", text.encode(), len(text)) is None


def test_a_length_beyond_the_body_is_refused() -> None:
    with pytest.raises(RequestError, match="the body has 2 bytes, got 3"):
        read_request("m", "", b"{}", 3)
