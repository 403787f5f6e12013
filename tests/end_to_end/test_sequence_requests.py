"""Sequences over every transport: scored as the trained modules do, alone and in merged batches."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray

from sharded_infer.client import Bags, Client
from tests.support.sequence_model import (
    MEMBERS,
    SPEC,
    SequenceModel,
    publish_sequences,
    sequence_request,
)
from tests.support.servers import RunningServer, json_inputs, running_server
from tests.support.traffic import triton_inputs

SEEDS = range(4)
Inputs = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SequenceModel:
    return publish_sequences(tmp_path_factory.mktemp("sequences") / "repository")


@pytest.fixture(scope="module")
def server(
    trained: SequenceModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("served") / "log"
    with running_server(trained.repository, log) as running:
        yield running


def triton_scores(library: ModuleType, client: Any, inputs: Inputs) -> NDArray[np.float32]:
    result = client.infer(SPEC.name, triton_inputs(inputs, library))
    scores: NDArray[np.float32] = result.as_numpy("score")
    return scores


def padded(inputs: Inputs, lengths: NDArray[np.int32]) -> Inputs:
    """Members as `[B, L]` or `[B, L, K]`, beside lengths of the sequence."""
    there = np.arange(int(lengths.max(initial=0)) + 1) < lengths[:, None]
    found = dict(inputs)
    for name in MEMBERS:
        found[name] = np.ones((*there.shape, *inputs[name].shape[1:]), inputs[name].dtype)
        found[name][there] = inputs[name]
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_client_gets_the_modules_scores(
    server: RunningServer, trained: SequenceModel, seed: int
) -> None:
    inputs = sequence_request(seed)
    wanted = trained.scores(inputs)
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    http = tritonclient.http.InferenceServerClient(server.http_address)
    jagged = triton_scores(tritonclient.grpc, grpc, inputs)
    np.testing.assert_allclose(jagged, wanted, atol=1e-5)
    forms = (inputs, padded(inputs, inputs["history.lengths"]))
    for library, client in ((tritonclient.grpc, grpc), (tritonclient.http, http)):
        for form in forms:
            assert np.array_equal(triton_scores(library, client, form), jagged)
    lengths = inputs["history.lengths"]
    candidates = {name: inputs[name] for name in ("price", "candidate")}
    candidates |= {name: Bags(inputs[name], lengths) for name in MEMBERS}
    with Client(server.grpc_url) as ours:
        answer = ours.predict(SPEC.name, candidates=candidates, timeout_seconds=60.0)
    assert np.array_equal(answer.scores["score"], jagged)
    http.close()
    grpc.close()


def test_a_users_history_is_sent_once(server: RunningServer, trained: SequenceModel) -> None:
    one, count = sequence_request(3, batch=1), 7
    user = {name: one[name] for name in MEMBERS}
    candidates = {name: sequence_request(4, batch=count)[name] for name in ("price", "candidate")}
    every = {name: np.concatenate([user[name]] * count) for name in MEMBERS}
    every |= {"history.lengths": np.repeat(one["history.lengths"], count)} | candidates
    wanted = trained.scores(every)
    with Client(server.grpc_url) as client:
        answer = client.predict(SPEC.name, user=user, candidates=candidates, timeout_seconds=60.0)
    np.testing.assert_allclose(answer.scores["score"], wanted, atol=1e-5)
    assert len(wanted) == count


def test_curl_sends_a_history_as_json(server: RunningServer, trained: SequenceModel) -> None:
    inputs = sequence_request(5)
    body = {"inputs": json_inputs(inputs)}
    url = f"{server.http_url}/v2/models/{SPEC.name}/infer"
    command = ["curl", "--silent", "--show-error", url, "-d", json.dumps(body)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    np.testing.assert_allclose(found["outputs"][0]["data"], trained.scores(inputs), atol=1e-5)


def test_requests_that_are_merged_get_the_scores_of_each(
    server: RunningServer, trained: SequenceModel
) -> None:
    requests = [sequence_request(seed) for seed in range(20, 44)]
    wanted = [trained.scores(inputs) for inputs in requests]
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    with ThreadPoolExecutor(len(requests)) as pool:
        for _ in range(3):
            found = pool.map(lambda one: triton_scores(tritonclient.grpc, client, one), requests)
            for scores, expected in zip(found, wanted, strict=True):
                np.testing.assert_allclose(scores, expected, atol=1e-5)
    client.close()


def test_metadata_and_configuration_describe_sequences(server: RunningServer) -> None:
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    metadata = client.get_model_metadata(SPEC.name, as_json=True)
    shapes = {one["name"]: (one["datatype"], one["shape"]) for one in metadata["inputs"]}
    assert shapes["seen"] == ("INT64", ["-1", "-1"])
    assert shapes["age"] == ("FP32", ["-1", "-1"])
    assert shapes["place"] == ("FP32", ["-1", "-1", "2"])
    config = client.get_model_config(SPEC.name, as_json=True)["config"]
    said = {name: one["string_value"] for name, one in config["parameters"].items()}
    assert {name: said[f"sequence.{name}"] for name in MEMBERS} == dict.fromkeys(MEMBERS, "history")
    assert (said["max_length.history"], said["keep.history"]) == ("6", "last")
    client.close()
