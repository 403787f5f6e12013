"""The Open Inference Protocol as unmodified clients speak it: tritonclient, sync and asyncio.

Every test holds on every transport.
"""

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.grpc.aio
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

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


class Client:
    """One of tritonclient's clients; calls of the asyncio one are run to their end."""

    def __init__(self, library: ModuleType, url: str) -> None:
        self.library = library
        self._loop = asyncio.new_event_loop()
        self._client = self._run(self._make(url))

    async def _make(self, url: str) -> Any:
        return self.library.InferenceServerClient(url)

    def _run(self, result: Any) -> Any:
        return self._loop.run_until_complete(result) if inspect.isawaitable(result) else result

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **kwargs: self._run(method(*args, **kwargs))

    def ask(self, inputs: Arrays, outputs: tuple[str, ...] | None = None, **options: Any) -> Any:
        """Sends a request; returns tritonclient's result."""
        tensors = []
        for name, array in inputs.items():
            datatype = DATATYPES[array.dtype.name]
            tensor = self.library.InferInput(name, list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        if outputs is not None:
            options["outputs"] = [self.library.InferRequestedOutput(name) for name in outputs]
        return self.infer(MODEL, tensors, **options)

    def stop(self) -> None:
        self.close()
        self._loop.close()


@pytest.fixture(
    scope="module", params=[tritonclient.grpc, tritonclient.grpc.aio], ids=["sync", "aio"]
)
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    client = Client(request.param, server.grpc_url)
    yield client
    client.stop()


def assert_scores_equal(
    got: dict[str, NDArray[np.float32]], expected: dict[str, NDArray[np.float32]]
) -> None:
    assert list(got) == list(expected)
    for name, scores in expected.items():
        assert got[name].dtype == np.float32 and got[name].shape == scores.shape
        assert np.array_equal(got[name], scores), name


# ---------------------------------------------------------------- what the server says of itself


def test_the_server_is_live_and_ready_and_names_itself(client: Client) -> None:
    assert client.is_server_live() is True
    assert client.is_server_ready() is True
    metadata = client.get_server_metadata()
    assert metadata.name == "sharded-infer" and metadata.version
    assert "statistics" in metadata.extensions


def test_a_served_model_is_ready_by_name_and_by_version_and_no_other_is(client: Client) -> None:
    assert client.is_model_ready(MODEL) is True
    assert client.is_model_ready(MODEL, "1") is True
    for name, version in (("other", ""), (MODEL, "2"), (MODEL, "one")):
        with pytest.raises(InferenceServerException) as refused:
            client.is_model_ready(name, version)
        assert refused.value.status() == "StatusCode.NOT_FOUND"
        assert name in str(refused.value) and version in str(refused.value)


def test_metadata_lists_features_dense_inputs_and_outputs_with_the_batch_first(
    client: Client,
) -> None:
    metadata = client.get_model_metadata(MODEL)
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


def test_the_configuration_agrees_with_the_metadata_without_the_batch(client: Client) -> None:
    metadata = client.get_model_metadata(MODEL, "1")
    config = client.get_model_config(MODEL, "1").config
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


def test_the_repository_index_lists_the_version_as_ready(client: Client) -> None:
    index = client.get_model_repository_index()
    assert [(m.name, m.version, m.state) for m in index.models] == [(MODEL, "1", "READY")]


def test_the_health_service_says_serving_for_the_server_and_the_service(
    server: RunningServer,
) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=10)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


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


@pytest.mark.parametrize("form", FORMS)
def test_scores_equal_those_of_the_opened_version_to_the_bit(
    client: Client, ranker: Ranker, form: str
) -> None:
    inputs = FORMS[form]
    expected = ranker.predict(inputs)
    result = client.ask(inputs)
    assert_scores_equal({name: result.as_numpy(name) for name in expected}, expected)


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


def test_the_forms_of_the_same_bags_score_the_same(client: Client) -> None:
    dense, ids = _dense(5), {f: _ids(f, 5) for f in FEATURES}
    ones = np.ones(5, np.int32)
    forms: list[Arrays] = [
        {"dense": dense, **ids},
        {"dense": dense, **{f: v.reshape(5, 1) for f, v in ids.items()}},
        {"dense": dense, **{f: v.astype(np.int32) for f, v in ids.items()}},
        {"dense": dense, **ids, **{f"{f}.lengths": ones for f in FEATURES}},
        {"dense": dense, **ids, **{f"{f}.weights": np.ones(5, np.float32) for f in FEATURES}},
        {
            "dense": dense,
            "sparse.values": np.concatenate(list(ids.values())),
            "sparse.lengths": np.ones((5, 5), np.int32),
        },
    ]
    first, *others = [client.ask(form) for form in forms]
    for other, name in itertools.product(others, ("score", "labels")):
        assert np.array_equal(first.as_numpy(name), other.as_numpy(name))


def test_a_shared_input_scores_as_if_it_were_repeated(client: Client) -> None:
    items, user, dense = _ids("item", 8), _ids("user", 1), _dense(1)
    shared = client.ask({"dense": dense, "user": user, "item": items})
    repeated = client.ask({"dense": dense.repeat(8, axis=0), "user": user.repeat(8), "item": items})
    assert np.array_equal(shared.as_numpy("score"), repeated.as_numpy("score"))
    assert np.unique(shared.as_numpy("score")).size > 1


def test_an_ignored_id_counts_as_absent_and_a_wrapped_one_as_its_remainder(
    client: Client,
) -> None:
    dense = _dense(2)
    outside = client.ask(
        {
            "dense": dense,
            "item": np.array([[5, 97], [-1, 96]]),
            "category": np.array([-1, 13 * 10**12 + 4]),
        }
    )
    inside = client.ask(
        {
            "dense": dense,
            "item": np.array([5, 96]),
            "item.lengths": np.array([1, 1], np.int32),
            "category": np.array([12, 4]),
        }
    )
    assert np.array_equal(outside.as_numpy("labels"), inside.as_numpy("labels"))


def test_inputs_may_come_in_any_order(client: Client, ranker: Ranker) -> None:
    inputs = good_inputs(6)
    expected = ranker.predict(inputs)
    generator = np.random.default_rng(4)
    for _ in range(5):
        names = generator.permutation(list(inputs))
        result = client.ask({name: inputs[name] for name in names})
        assert_scores_equal({name: result.as_numpy(name) for name in expected}, expected)


# ---------------------------------------------------------------- what comes back


def test_only_the_outputs_that_were_asked_for_come_back(client: Client, ranker: Ranker) -> None:
    inputs = good_inputs(3)
    expected = ranker.predict(inputs)
    for wanted in (("labels",), ("score",), ("score", "labels")):
        result = client.ask(inputs, outputs=wanted)
        response = result.get_response()
        assert [output.name for output in response.outputs] == list(wanted)
        assert len(response.raw_output_contents) == len(wanted)
        for name in wanted:
            assert np.array_equal(result.as_numpy(name), expected[name])


def test_outputs_asked_for_in_another_order_keep_their_own_contents(
    client: Client, ranker: Ranker
) -> None:
    inputs = good_inputs(3)
    result = client.ask(inputs, outputs=("labels", "score"))
    for name, scores in ranker.predict(inputs).items():
        assert np.array_equal(result.as_numpy(name), scores)


def test_a_response_names_model_version_and_the_requests_own_id(client: Client) -> None:
    for request_id in ("", "4711", "übung-☃"):
        response = client.ask(good_inputs(1), request_id=request_id).get_response()
        assert (response.id, response.model_name, response.model_version) == (
            request_id,
            MODEL,
            "1",
        )


def test_a_version_may_be_named(client: Client, ranker: Ranker) -> None:
    inputs = good_inputs(2)
    result = client.ask(inputs, model_version="1")
    assert np.array_equal(result.as_numpy("score"), ranker.predict(inputs)["score"])


@pytest.mark.parametrize("batch", [1, 5])
def test_each_output_has_raw_contents_of_its_own(stub: Any, ranker: Ranker, batch: int) -> None:
    inputs = good_inputs(batch)
    response = stub.ModelInfer(infer_request(inputs), timeout=10)
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("score", "FP32", [batch]),
        ("labels", "FP32", [batch, 3]),
    ]
    assert [len(raw) for raw in response.raw_output_contents] == [4 * batch, 12 * batch]
    assert not any(output.HasField("contents") for output in response.outputs)
    assert_scores_equal(scores_of(response), ranker.predict(inputs))


@pytest.mark.parametrize("form", ["good", *FORMS])
def test_typed_contents_score_as_raw_ones_do(stub: Any, ranker: Ranker, form: str) -> None:
    inputs = good_inputs(6) if form == "good" else FORMS[form]
    fields = {"int64": "int64_contents", "int32": "int_contents", "float32": "fp32_contents"}
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, array in inputs.items():
        tensor = request.inputs.add(name=name, datatype=DATATYPES[array.dtype.name])
        tensor.shape.extend(array.shape)
        getattr(tensor.contents, fields[array.dtype.name]).extend(array.ravel().tolist())
    response = stub.ModelInfer(request, timeout=10)
    assert_scores_equal(scores_of(response), ranker.predict(inputs))


def test_a_plain_load_generators_zeros_are_answered(client: Client) -> None:
    metadata = client.get_model_metadata(MODEL)
    config = client.get_model_config(MODEL).config
    assert config.max_batch_size > 0
    kinds = {"INT64": np.int64, "FP32": np.float32}
    for batch, variable in itertools.product((1, 8), (1, 3)):
        inputs = {
            tensor.name: np.zeros(
                [batch, *(variable if size == -1 else size for size in tensor.shape[1:])],
                kinds[tensor.datatype],
            )
            for tensor in metadata.inputs
        }
        result = client.ask(inputs)
        for output in metadata.outputs:
            scores = result.as_numpy(output.name)
            assert scores.shape == (batch, *output.shape[1:])
            assert np.isfinite(scores).all() and (scores == scores[0]).all()


# ---------------------------------------------------------------- statistics


def test_statistics_add_up_to_the_requests_sent(client: Client) -> None:
    client.ask(good_inputs(1))
    before = client.get_inference_statistics(MODEL).model_stats[0]
    sizes = (1, 4, 17)
    for size in sizes:
        client.ask(good_inputs(size))
    with pytest.raises(InferenceServerException):
        client.ask({"dense": _dense(2), "user": np.array([0, 50])})
    after = client.get_inference_statistics(MODEL, "1").model_stats[0]
    assert (after.name, after.version) == (MODEL, "1")
    assert after.inference_count - before.inference_count == sum(sizes)
    assert after.execution_count - before.execution_count == len(sizes)
    assert after.last_inference >= before.last_inference > 0
    spent = {}
    for phase in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
        new = getattr(after.inference_stats, phase)
        old = getattr(before.inference_stats, phase)
        assert new.count - old.count == (1 if phase == "fail" else len(sizes)), phase
        spent[phase] = new.ns - old.ns
    parts = spent["compute_input"] + spent["compute_infer"] + spent["compute_output"]
    assert spent["fail"] > 0 and parts > 0
    assert abs(spent["success"] - parts - spent["queue"]) <= 4 * len(sizes), "rounding only"


def test_statistics_of_all_models_come_when_none_is_named(client: Client) -> None:
    stats = client.get_inference_statistics()
    assert [(s.name, s.version) for s in stats.model_stats] == [(MODEL, "1")]
    with pytest.raises(InferenceServerException) as refused:
        client.get_inference_statistics("other")
    assert refused.value.status() == "StatusCode.NOT_FOUND"
