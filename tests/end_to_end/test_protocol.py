"""What a server says of itself, and every form of an input, on the wire as gRPC has it.

NVIDIA's clients ask the same of every transport in `tests/conformance/`.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.support.servers import (
    DATATYPES,
    DENSE_WIDTH,
    MODEL,
    Arrays,
    Ranker,
    good_inputs,
    infer_request,
    scores_of,
)

FEATURES = ("user", "item", "history", "category", "brand")
ROWS = {"user": 50, "item": 97, "history": 97, "category": 13, "brand": 20}


def check_scores(response: Any, expected: Arrays) -> None:
    """They are equal to the bit, and in the same order."""
    found = scores_of(response)
    assert list(found) == list(expected)
    for name, scores in expected.items():
        assert found[name].dtype == np.float32 and found[name].shape == scores.shape
        assert np.array_equal(found[name], scores), name


# ---------------------------------------------------------------- what the server says of itself


def test_metadata_and_configuration_describe_each_tensor_with_and_without_the_batch(
    stub: Any,
) -> None:
    metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=MODEL), timeout=10)
    assert metadata.name == MODEL and list(metadata.versions) == ["1"] and metadata.platform
    inputs = {i.name: (i.datatype, list(i.shape)) for i in metadata.inputs}
    assert inputs == {
        "dense": ("FP32", [-1, DENSE_WIDTH]),
        **dict.fromkeys(FEATURES, ("INT64", [-1, -1])),
    }
    sparse = [i.name for i in metadata.inputs if i.datatype == "INT64"]
    assert sparse == list(FEATURES), "sparse.lengths is in this order"
    outputs = {o.name: (o.datatype, list(o.shape)) for o in metadata.outputs}
    assert outputs == {"score": ("FP32", [-1]), "labels": ("FP32", [-1, 3])}
    asked = service_pb2.ModelConfigRequest(name=MODEL, version="1")
    config = stub.ModelConfig(asked, timeout=10).config
    assert config.name == MODEL and config.max_batch_size == 65536
    types = {"INT64": model_config_pb2.TYPE_INT64, "FP32": model_config_pb2.TYPE_FP32}
    for described, configured in (
        (metadata.inputs, config.input),
        (metadata.outputs, config.output),
    ):
        assert [(t.name, types[t.datatype], list(t.shape)) for t in described] == [
            (t.name, t.data_type, [-1, *t.dims]) for t in configured
        ]
    assert not config.HasField("sequence_batching")
    assert not config.HasField("ensemble_scheduling")
    assert not config.model_transaction_policy.decoupled


# ---------------------------------------------------------------- every form of an input


def _ids(feature: str, *shape: int, seed: int = 1) -> NDArray[np.int64]:
    return np.random.default_rng([seed, len(feature)]).integers(0, ROWS[feature], shape)


def _dense(batch: int) -> NDArray[np.float32]:
    generator = np.random.default_rng(batch)
    return generator.standard_normal((batch, DENSE_WIDTH), dtype=np.float32)


def _weights(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(9).standard_normal(shape, dtype=np.float32)


LENGTHS = np.array([2, 0, 3, 1, 0], np.int32)
ALL_LENGTHS = np.array(
    [[1, 1, 1, 1], [2, 0, 1, 3], [0, 0, 0, 0], [4, 1, 0, 2], [1, 0, 0, 0]], np.int32
)
ALL_VALUES = np.concatenate(
    [_ids(f, int(n)) for f, n in zip(FEATURES, ALL_LENGTHS.sum(axis=1), strict=True)]
)
FORMS: dict[str, Arrays] = {
    "jagged": {
        "dense": _dense(5),
        **{f: _ids(f, 6) for f in FEATURES},
        **{f"{f}.lengths": LENGTHS for f in FEATURES},
    },
    "weights of a jagged bag": {
        "dense": _dense(5),
        "brand": _ids("brand", 6),
        "brand.lengths": LENGTHS,
        "brand.weights": _weights(6),
    },
    "all at once, weighted, INT32": {
        "dense": _dense(4),
        "sparse.values": ALL_VALUES.astype(np.int32),
        "sparse.lengths": ALL_LENGTHS,
        "sparse.weights": _weights(len(ALL_VALUES)),
    },
    "INT32 ids": {"dense": _dense(5), **{f: _ids(f, 5, 2).astype(np.int32) for f in FEATURES}},
    "ranking: a shared jagged bag and shared dense": {
        "dense": _dense(1),
        "history": _ids("history", 4),
        "history.lengths": np.array([4], np.int32),
        "history.weights": _weights(4),
        "item": _ids("item", 300),
    },
    "a large batch": {"dense": _dense(2000), **{f: _ids(f, 2000, 2) for f in FEATURES}},
}


@pytest.mark.parametrize("form", ["good", *FORMS])
def test_raw_and_typed_contents_score_as_the_opened_version_to_the_bit(
    stub: Any, ranker: Ranker, form: str
) -> None:
    inputs = good_inputs(6) if form == "good" else FORMS[form]
    expected = ranker.predict(inputs)
    check_scores(stub.ModelInfer(infer_request(inputs), timeout=10), expected)
    fields = {"int64": "int64_contents", "int32": "int_contents", "float32": "fp32_contents"}
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, array in inputs.items():
        tensor = request.inputs.add(name=name, datatype=DATATYPES[array.dtype.name])
        tensor.shape.extend(array.shape)
        getattr(tensor.contents, fields[array.dtype.name]).extend(array.ravel().tolist())
    check_scores(stub.ModelInfer(request, timeout=10), expected)
