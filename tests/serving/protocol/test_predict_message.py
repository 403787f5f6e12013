from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from serving.protocol.message_format import MessageFormat
from serving.protocol.predict_message import PredictInputs
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.request_header import RequestHeader, predict_header_of, read_header
from sharded_infer.client import Bags, hash_strings
from sharded_infer.client.request_message import request_message
from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.v1 import predictor_pb2
from tests.support.requests_by_chance import (
    MAX_BATCH,
    SPEC,
    Arrays,
    check_same,
    inputs_by_chance,
    serialized,
)

PORTABLE = PortableReader(SPEC, max_batch=MAX_BATCH)
NATIVE = NativeReader(SPEC, max_batch=MAX_BATCH)
CONTEXT, BID = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(1, np.float32)
DENSE = {"context": CONTEXT}
FEATURES = {feature.name for feature in SPEC.features}


def native(message: bytes) -> Any:
    return NATIVE.read_message(message, MessageFormat.PREDICT)


def message(**fields: Any) -> bytes:
    return bytes(predictor_pb2.PredictRequest(**fields).SerializeToString())


def good(**more: Any) -> bytes:
    candidates = {"item": [1, 2], **DENSE, **more}
    return request_message("small", user={"bid": BID}, candidates=candidates)


def as_predict(inputs: Arrays) -> bytes | None:
    """A request of the protocol's form in ours; None: it uses all features at once."""
    if any(name.startswith("sparse.") for name in inputs):
        return None
    user: dict[str, Any] = {}
    candidates: dict[str, Any] = {}
    for name, array in inputs.items():
        if name in SPEC.dense.inputs:
            (user if len(array) == 1 else candidates)[name] = array
        elif name in FEATURES:
            lengths, weights = inputs.get(f"{name}.lengths"), inputs.get(f"{name}.weights")
            if lengths is None:
                size = array.shape[1] if array.ndim == 2 else 1
                lengths = np.full(len(array), size, np.int64)
            bags = Bags(
                array.reshape(-1), lengths, None if weights is None else weights.reshape(-1)
            )
            (user if len(lengths) == 1 else candidates)[name] = bags
    return request_message("small", user=user, candidates=candidates)


@settings(deadline=None, max_examples=80)
@given(inputs_by_chance())
def test_every_form_is_read_as_the_protocols_form_is(inputs: Arrays) -> None:
    # Our form does not tell no weights from the weights of no ids.
    inputs = {n: a for n, a in inputs.items() if a.size or not n.endswith(".weights")}
    written = as_predict(inputs)
    if written is None:
        return
    wanted = PORTABLE.read_message(serialized(inputs))
    check_same(PORTABLE.read_message(written, form=MessageFormat.PREDICT), wanted)
    found = native(written)
    assert found is not None
    check_same(found, wanted)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (
            {"sparse": [{"name": "itm", "ids": [1, 2]}]},
            r"feature 'itm' is not one of the model's: item, .*; did you mean 'item'",
        ),
        ({"sparse": [{"name": "sparse.values", "ids": [1]}]}, "'sparse.values' is not one"),
        (
            {"sparse": [{"name": "context", "ids": [1]}]},
            "'context' is a dense input: expected floats, got integers",
        ),
        (
            {"dense": [{"name": "item", "values": [1]}]},
            "'item' is a feature: expected integers, got floats",
        ),
        ({"dense": [{"name": "bid", "values": [1, 2]}]}, "'bid' came twice"),
        ({"dense": [{"name": "context", "values": [1] * 4}]}, "2 candidates x 3 = 6 values, got 4"),
        ({"sparse": [{"name": "item"}]}, "'item': neither ids nor lengths came: it has no cand"),
        ({"sparse": [{"name": "item", "ids": [1], "long_ids": [1]}]}, "both ids and long_ids"),
        (
            {"sparse": [{"name": "item", "ids": [1, 2], "lengths": [2], "ids_per_bag": 2}]},
            "lengths or ids_per_bag, got both",
        ),
        ({"sparse": [{"name": "item", "ids": [1, 2, 3], "ids_per_bag": 2}]}, "bags of 2"),
        ({"sparse": [{"name": "item", "ids": [1, 2], "weights": [1]}]}, "weight for each of 2"),
        ({"sparse": [{"name": "item", "ids": [1, 2], "lengths": [1, 2]}]}, "lengths"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(inputs: dict[str, Any], words: str) -> None:
    dense = list(inputs.get("dense", ()))
    if all(values["name"] != "context" for values in dense):
        dense.append({"name": "context", "values": [0] * 6})
    sparse = inputs.get("sparse", [{"name": "item", "ids": [1, 2]}])
    written = message(
        model="small",
        user={"dense": [{"name": "bid", "values": [1]}]},
        candidates={"sparse": sparse, "dense": dense},
    )
    assert native(written) is None
    with pytest.raises(RequestError, match=words):
        InputReader(SPEC, max_batch=MAX_BATCH).read_message(written, form=MessageFormat.PREDICT)


WORD = TableSpec("word", 50, 1, id_map=IdMapSpec("zero", "murmur3_x64_128", seed=9))
NUMBER = TableSpec("number", 50, 1)
WORDS = [b"", b"a\0", "größe".encode(), b"a\0"]
JOINED = {"strings": b"".join(WORDS), "string_lengths": [len(word) for word in WORDS]}


def ids_of(sparse: dict[str, Any], *, user: bool = False) -> dict[str, Any]:
    side = "user" if user else "candidates"
    request = predictor_pb2.PredictRequest(**{side: {"sparse": [sparse]}})
    return PredictInputs(ModelSpec("words", (WORD, NUMBER))).arrays(request)


def test_strings_are_hashed_to_ids() -> None:
    wanted = hash_strings(WORDS, "murmur3_x64_128", 9).tolist()
    assert ids_of({"name": "word", **JOINED})["word"].tolist() == wanted
    pairs = ids_of({"name": "word", "ids_per_bag": 2, **JOINED})["word"]
    assert pairs.tolist() == [wanted[:2], wanted[2:]]
    bags = ids_of({"name": "word", "lengths": [3, 0, 1], "weights": [1, 2, 3, 4], **JOINED})
    assert bags["word"].tolist() == wanted
    assert bags["word.lengths"].tolist() == [3, 0, 1] and bags["word.weights"].size == 4
    assert ids_of({"name": "word", **JOINED}, user=True)["word"].tolist() == [wanted]
    assert ids_of({"name": "word", "string_lengths": [0]})["word"].tolist() == wanted[:1]


@pytest.mark.parametrize(
    ("sparse", "words"),
    [
        ({"name": "number", **JOINED}, "feature 'number': strings came; expected ids that are num"),
        ({"name": "word", "ids": [1], **JOINED}, "'word': both ids and strings came"),
        (
            {"name": "word", "strings": b"abc", "string_lengths": [1, 1]},
            "feature 'word': string_lengths sum to 2, but strings have 3 bytes",
        ),
        (
            {"name": "word", "strings": b"a", "string_lengths": [2**32 - 1] * 3},
            "string_lengths sum to 12884901885, but strings have 1 byte",
        ),
        ({"name": "word", "ids_per_bag": 3, **JOINED}, "4 ids cannot make bags of 3"),
        ({"name": "word", "weights": [1], **JOINED}, "expected a weight for each of 4 ids, got 1"),
    ],
)
def test_strings_that_do_not_fit_are_refused_by_name(sparse: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        ids_of(sparse)


@pytest.mark.parametrize("more", [{}, {"ids": [1, 2]}])
def test_strings_that_an_input_does_not_take_are_left(more: dict[str, Any]) -> None:
    """Compiled code must not take their feature for one without ids."""
    request = predictor_pb2.PredictRequest.FromString(good())
    for field in ("strings", "string_lengths"):
        changed = predictor_pb2.PredictRequest.FromString(request.SerializeToString())
        (item,) = changed.candidates.sparse
        item.ClearField("ids")
        item.MergeFrom(type(item)(**more, **{field: JOINED[field]}))
        assert native(changed.SerializeToString()) is None


def test_candidates_without_features_are_as_many_as_their_dense_inputs_have_rows() -> None:
    reader = InputReader(SPEC, max_batch=MAX_BATCH)

    def decode(message: bytes) -> ModelInput:
        return reader.read_message(message, form=MessageFormat.PREDICT)

    shared = {"bid": BID}
    assert decode(request_message("s", user=shared, candidates=DENSE)).batch_size == 2
    one = {"context": CONTEXT[:1], "item": [1]}
    assert decode(request_message("s", user=shared, candidates=one)).batch_size == 1
    short = message(candidates={"dense": [{"name": "context", "values": [0] * 4}]})
    with pytest.raises(RequestError, match="expected 3 values for each candidate, got 4"):
        decode(short)


def test_a_users_ids_are_one_bag() -> None:
    sparse = [{"name": "item", "ids": [1, 2], "lengths": [1, 1]}]
    with pytest.raises(RequestError, match="'item': the user's ids are one bag"):
        PORTABLE.read_message(message(user={"sparse": sparse}), form=MessageFormat.PREDICT)


def test_weights_of_an_input_that_has_none_are_left_to_the_portable_path() -> None:
    tables = tuple(replace(t, weighted=False) if t.name == "deep" else t for t in SPEC.tables)
    reader = NativeReader(replace(SPEC, tables=tables), max_batch=MAX_BATCH)
    weighted = good(**{"item.weights": [1.0, 10.0]})
    assert native(weighted) is not None
    assert reader.read_message(weighted, MessageFormat.PREDICT) is None
    assert reader.read_message(good(), MessageFormat.PREDICT) is not None


def test_headers_are_the_same_by_either_reader() -> None:
    written = request_message(
        "small",
        version="stable",
        outputs=("score", "click"),
        request_id="r-1",
        priority=3,
        report_unknown_ids=True,
        candidates={"item": [1]},
    )
    wanted = RequestHeader(
        "small", "stable", "r-1", 3, 0, ("score", "click"), reports_unknown_ids=True
    )
    assert predict_header_of(predictor_pb2.PredictRequest.FromString(written)) == wanted
    assert read_header(written, MessageFormat.PREDICT) == wanted
    assert read_header(message(model="münchen"), MessageFormat.PREDICT) is None
