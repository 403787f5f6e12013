"""Hostile strings in our own Predict calls: refused in words, soon, and without much memory."""

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from serving.protocol.message_format import MessageFormat
from serving.protocol.predict_message import PredictInputs, parse_predict
from serving.protocol.readers.native_reader import NativeReader
from sharded_infer.errors import RequestError
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.v1 import predictor_pb2

SPEC = ModelSpec(
    "words",
    (TableSpec("word", 9, 1, id_map=IdMapSpec("zero", "xxh3_64")), TableSpec("number", 9, 1)),
)
INPUTS = PredictInputs(SPEC)
SECONDS, BYTES = 1.0, 4 << 20


def message(**word: Any) -> bytes:
    request = predictor_pb2.PredictRequest(model="words")
    request.candidates.sparse.add(name="word", **word)
    return bytes(request.SerializeToString())


GOOD = message(strings="aé".encode() * 3, string_lengths=[1, 2, 3, 0, 3], lengths=[2, 0, 3])


@pytest.mark.parametrize(
    "hostile",
    [
        message(strings=b"a", string_lengths=[2**32 - 1] * 10_000),
        message(strings=b"", string_lengths=[2**32 - 1]),
        message(strings=b"a" * 100_000, string_lengths=[]),
        message(strings=b"", string_lengths=[0] * 10_000, ids_per_bag=2**32 - 1),
        message(strings=b"", string_lengths=[0] * 10_000, weights=[1.0]),
        message(strings=b"a", string_lengths=[1], ids=[1] * 10_000),
    ],
)
def test_strings_that_do_not_add_up_are_refused(hostile: bytes) -> None:
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(RequestError, match="'word'"):
            INPUTS.arrays(parse_predict(hostile))
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < SECONDS


def test_changed_bytes_are_refused_or_read_and_never_by_compiled_code_as_no_ids() -> None:
    generator = np.random.default_rng(11)
    native = NativeReader(SPEC, max_batch=8)
    for _ in range(3000):
        changed = np.frombuffer(GOOD, np.uint8).copy()
        places = generator.integers(0, len(changed), generator.integers(1, 4))
        changed[places] = generator.integers(0, 256, len(places))
        try:
            request = parse_predict(changed.tobytes())
            found = INPUTS.arrays(request)
        except RequestError:
            continue
        assert all(array.dtype == np.int64 for name, array in found.items() if name == "word")
        if any(one.string_lengths for one in request.candidates.sparse):
            assert native.read_message(changed.tobytes(), MessageFormat.PREDICT) is None
