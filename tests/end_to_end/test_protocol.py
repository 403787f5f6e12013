"""What a server says of itself, and every form of an input, on the wire as gRPC has it.

NVIDIA's clients ask the same of every transport in `tests/conformance/`.
"""

import itertools
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.support.servers import (
    DATATYPES,
    DENSE_WIDTH,
    MODEL,
    Arrays,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    scores_of,
)

FEATURES = ("user", "item", "history", "category", "brand")
ROWS = {"user": 50, "item": 97, "history": 97, "category": 13, "brand": 20}
SERVICE = "inference.GRPCInferenceService"


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


def test_the_health_service_knows_the_protocols_service(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_services_and_describes_the_protocol(server: RunningServer) -> None:
    ask = reflection_pb2.ServerReflectionRequest
    requests = [ask(list_services=""), ask(file_containing_symbol=SERVICE)]
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, described = stub.ServerReflectionInfo(iter(requests), timeout=10)
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in described.file_descriptor_response.file_descriptor_proto
    ]
    methods = {m.name for file in files for s in file.service for m in s.method}
    assert {"ModelInfer", "ModelMetadata", "ServerReady"} <= methods


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
    "one id a sample": {"dense": _dense(5), **{f: _ids(f, 5) for f in FEATURES}},
    "one id a sample, [B, 1]": {"dense": _dense(5), **{f: _ids(f, 5, 1) for f in FEATURES}},
    "several ids a sample": {"dense": _dense(5), **{f: _ids(f, 5, 3) for f in FEATURES}},
    "no ids a sample, [B, 0]": {"dense": _dense(5), **{f: _ids(f, 5, 0) for f in FEATURES}},
    "jagged": {
        "dense": _dense(5),
        **{f: _ids(f, 6) for f in FEATURES},
        **{f"{f}.lengths": LENGTHS for f in FEATURES},
    },
    "jagged, lengths INT64": {
        "dense": _dense(5),
        "item": _ids("item", 6),
        "item.lengths": LENGTHS.astype(np.int64),
    },
    "jagged, all bags empty": {
        "dense": _dense(5),
        "history": _ids("history", 0),
        "history.lengths": np.zeros(5, np.int32),
    },
    "weights of one id a sample": {
        "dense": _dense(5),
        "user": _ids("user", 5),
        "user.weights": _weights(5),
        "brand": _ids("brand", 5),
    },
    "weights of several ids": {
        "dense": _dense(5),
        "item": _ids("item", 5, 3),
        "item.weights": _weights(5, 3),
        "category": _ids("category", 5, 2),
        "category.weights": _weights(5, 2),
    },
    "weights of a jagged bag": {
        "dense": _dense(5),
        "brand": _ids("brand", 6),
        "brand.lengths": LENGTHS,
        "brand.weights": _weights(6),
    },
    "all at once": {
        "dense": _dense(4),
        "sparse.values": ALL_VALUES,
        "sparse.lengths": ALL_LENGTHS,
    },
    "all at once, weighted, INT32": {
        "dense": _dense(4),
        "sparse.values": ALL_VALUES.astype(np.int32),
        "sparse.lengths": ALL_LENGTHS,
        "sparse.weights": _weights(len(ALL_VALUES)),
    },
    "all at once, shared by every sample": {
        "dense": _dense(7),
        "sparse.values": _ids("user", 5) % 13,
        "sparse.lengths": np.ones((5, 1), np.int32),
    },
    "INT32 ids": {"dense": _dense(5), **{f: _ids(f, 5, 2).astype(np.int32) for f in FEATURES}},
    "all features left out": {"dense": _dense(3)},
    "some features left out": {"dense": _dense(3), "category": _ids("category", 3)},
    "one sample": {"dense": _dense(1), **{f: _ids(f, 1, 2) for f in FEATURES}},
    "ranking: a user's features shared by the candidates": {
        "dense": _dense(9),
        "user": _ids("user", 1),
        "history": _ids("history", 1, 6),
        "item": _ids("item", 9),
        "brand": _ids("brand", 9, 2),
    },
    "ranking: a shared jagged bag and shared dense": {
        "dense": _dense(1),
        "history": _ids("history", 4),
        "history.lengths": np.array([4], np.int32),
        "history.weights": _weights(4),
        "item": _ids("item", 300),
    },
    "ranking: only the dense input differs": {
        "dense": _dense(6),
        **{f: _ids(f, 1, 3) for f in FEATURES},
    },
    "ids outside tables that ignore or wrap them": {
        "dense": _dense(4),
        "item": np.array([96, 97, -1, 2**63 - 1]),
        "category": np.array([[12, 13], [-1, -(2**63)], [2**63 - 1, 0], [26, 5]]),
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


def test_scores_are_those_of_the_trained_model_within_its_quantization(
    stub: Any, ranker: Ranker
) -> None:
    # Bags are pooled here id by id, from the trained tables: nothing of the server's is used.
    inputs = good_inputs(40)
    ends = np.cumsum(inputs["history.lengths"])
    bags: dict[str, list[NDArray[Any]]] = {
        name: [np.atleast_1d(row) for row in inputs[name]] for name in FEATURES
    }
    bags["history"] = np.split(inputs["history"], ends[:-1])
    pooled = []
    for name in FEATURES:
        table = ranker.tables["item" if name == "history" else name]
        rows = []
        for sample, bag in enumerate(bags[name]):
            vectors = table.weight[torch.as_tensor(bag, dtype=torch.int64)]
            if name == "category":
                weights = torch.as_tensor(inputs["category.weights"][sample])
                vectors = vectors * weights[:, None]
            total = vectors.sum(0)
            rows.append(total / max(len(bag), 1) if table.mode == "mean" else total)
        pooled.append(torch.stack(rows))
    with torch.inference_mode():
        expected = ranker.tower(torch.as_tensor(inputs["dense"]), torch.cat(pooled, dim=1))
    got = scores_of(stub.ModelInfer(infer_request(inputs), timeout=10))
    for name, scores in expected.items():
        assert got[name].shape == tuple(scores.shape)
        assert np.abs(got[name] - scores.numpy()).max() < 0.02, name
    assert np.ptp(got["score"]) > 0.05, "scores that hardly differ would prove nothing"


# ---------------------------------------------------------------- what comes back


def test_outputs_come_as_asked_for_each_with_raw_contents_of_its_own(
    stub: Any, ranker: Ranker
) -> None:
    inputs, batch = good_inputs(3), 3
    expected = ranker.predict(inputs)
    shapes = {"score": [batch], "labels": [batch, 3]}
    for wanted in ((), ("labels",), ("score",), ("labels", "score")):
        request = infer_request(inputs, request_id="übung-☃")
        request.model_version = "1"
        for name in wanted:
            request.outputs.add(name=name)
        response = stub.ModelInfer(request, timeout=10)
        found = (response.id, response.model_name, response.model_version)
        assert found == ("übung-☃", MODEL, "1")
        assert {o.name: (o.datatype, list(o.shape)) for o in response.outputs} == {
            name: ("FP32", shapes[name]) for name in wanted or shapes
        }
        assert not any(output.HasField("contents") for output in response.outputs)
        for name, scores in scores_of(response).items():
            assert np.array_equal(scores, expected[name])


def test_a_plain_load_generators_zeros_are_answered(stub: Any) -> None:
    metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=MODEL), timeout=10)
    kinds = {"INT64": np.int64, "FP32": np.float32}
    for batch, variable in itertools.product((1, 8), (1, 3)):
        inputs = {
            tensor.name: np.zeros(
                [batch, *(variable if size == -1 else size for size in tensor.shape[1:])],
                kinds[tensor.datatype],
            )
            for tensor in metadata.inputs
        }
        found = scores_of(stub.ModelInfer(infer_request(inputs), timeout=10))
        for output in metadata.outputs:
            scores = found[output.name]
            assert scores.shape == (batch, *output.shape[1:])
            assert np.isfinite(scores).all() and (scores == scores[0]).all()


# ---------------------------------------------------------------- statistics


def test_statistics_tell_failed_requests_from_others_and_are_of_all_models_unless_one_is_named(
    stub: Any,
) -> None:
    def statistics() -> Any:
        request = service_pb2.ModelStatisticsRequest()
        [stats] = stub.ModelStatistics(request, timeout=10).model_stats
        assert (stats.name, stats.version) == (MODEL, "1")
        return stats

    stub.ModelInfer(infer_request(good_inputs(1)), timeout=10)
    before = statistics()
    with pytest.raises(grpc.RpcError):
        stub.ModelInfer(infer_request({"dense": _dense(2), "user": np.array([0, 50])}), timeout=10)
    after = statistics()
    old, new = before.inference_stats, after.inference_stats
    assert (new.fail.count - old.fail.count, new.fail.ns > old.fail.ns) == (1, True)
    assert new.success == old.success
    assert after.inference_count == before.inference_count
    assert after.last_inference >= before.last_inference > 0
