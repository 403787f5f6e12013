"""Rewritten inputs: compiled code reads them as the portable path reads the originals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.request_tensors import RequestTensors
from sharded_infer.errors import RequestError
from sharded_infer.specs.model_spec import ModelSpec
from tests.support import requests_by_chance as plain
from tests.support import string_requests as strings
from tests.support.requests_by_chance import Arrays, check_same, serialized

DENSE: Arrays = {
    "context": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bid": np.ones((1, 1), np.float32),
}


def check_rewritten(
    spec: ModelSpec, message: bytes, same: bytes | None = None, **fields: Any
) -> None:
    """The message is unusual, and compiled code reads it when it is rewritten; `same` means it."""
    reader = InputReader(spec, **fields)
    assert reader.native.read_message(message) is None
    found = reader.native.read_message(reader.rewritten(message, RequestTensors(None)))
    assert found is not None
    check_same(found, PortableReader(spec, **fields).read_message(same or message))


def test_weights_of_one_where_no_weights_are_used() -> None:
    (table, *others) = plain.SPEC.tables
    spec = replace(plain.SPEC, tables=(replace(table, weighted=False), *others))
    name = table.features[0] if table.features else table.name
    ids, ones = np.array([[1], [2]]), np.ones((2, 1), np.float32)
    inputs = {**DENSE, name: ids}
    weighted = serialized({**inputs, f"{name}.weights": ones})
    check_rewritten(spec, weighted, serialized(inputs), max_batch=plain.MAX_BATCH)


def test_padded_strings() -> None:
    words = strings.strings([b"a", b"b", b"c", b"d"], 2, 2)
    inputs = {"age": strings.AGE, "word": words, "word.lengths": strings.numbers([2, 1])}
    fields = {"max_batch": strings.MAX_BATCH, "id_maps": strings.MAPS}
    check_rewritten(strings.SPEC, strings.message_of(inputs), **fields)


def test_what_is_refused_is_not_rewritten() -> None:
    reader = InputReader(plain.SPEC, max_batch=plain.MAX_BATCH)
    message = serialized({**DENSE, "context": np.ones((2, 4), np.float32)})
    with pytest.raises(RequestError, match=r"'context': expected FP32 \[B, 3\]"):
        reader.rewritten(message, RequestTensors(None))
    with pytest.raises(RequestError, match="unreadable"):
        reader.rewritten(b"\xff", RequestTensors(None), MessageFormat.PREDICT)
