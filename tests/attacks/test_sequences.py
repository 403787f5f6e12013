"""Malformed requests to a model with sequences, over gRPC and HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from sharded_infer.client import Client, PredictError
from tests.attacks.http_client import document, post
from tests.support.sequence_model import (
    MEMBERS,
    SPEC,
    SequenceModel,
    publish_sequences,
    sequence_request,
)
from tests.support.servers import RunningServer, infer_request, running_server

LONG = 2**62
SENT: dict[str, NDArray[Any]] = {
    "price": np.ones((2, 1), np.float32),
    "candidate": np.array([3, 4]),
    "seen": np.array([5, 6, 7]),
    "history.lengths": np.array([2, 1], np.int64),
    "action": np.array([1, 2, 9]),
    "age": np.ones(3, np.float32),
    "place": np.zeros((3, 2), np.float32),
}
NAN = np.array([1, np.nan, 1], np.float32)
# What else is refused, and in which words, the reader's own tests have.
CASES: dict[str, tuple[dict[str, NDArray[Any] | None], str]] = {
    "huge lengths": ({"history.lengths": np.array([LONG, LONG])}, f"a length of {LONG}, but 3 ids"),
    "NaN among the numbers": ({"age": NAN}, "'age': expected finite numbers, got nan"),
    "numbers of no ids for billions of samples": (
        {"place": np.zeros((2**31 - 1, 0, 2), np.float32)},
        "the request has 2147483647 samples",
    ),
    "all features at once": (
        {name: None for name in SENT if name != "price"}
        | {"sparse.values": np.zeros(6, np.int64), "sparse.lengths": np.ones((3, 2), np.int64)},
        "send each input by name",
    ),
}
BATCH = sequence_request(3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SequenceModel:
    return publish_sequences(tmp_path_factory.mktemp("attacked") / "repository")


@pytest.fixture(scope="module")
def target(trained: SequenceModel, tmp_path_factory: Any) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("log") / "log"
    options = ("--max-ids", 2**21)
    with running_server(trained.repository, log, *options) as server:
        yield server


def infer(server: RunningServer, inputs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    with server.stub() as stub:
        response = stub.ModelInfer(infer_request(inputs, model=SPEC.name), timeout=60.0)
    return np.frombuffer(response.raw_output_contents[0], np.float32)


def check_goes_on(server: RunningServer, trained: SequenceModel) -> None:
    np.testing.assert_allclose(infer(server, BATCH), trained.scores(BATCH), atol=1e-5)


@pytest.mark.parametrize("attack", CASES)
def test_it_is_refused_in_words_and_harms_nobody_after_it(
    target: RunningServer, trained: SequenceModel, attack: str
) -> None:
    changes, words = CASES[attack]
    inputs = {name: one for name, one in {**SENT, **changes}.items() if one is not None}
    with pytest.raises(grpc.RpcError) as refusal:
        infer(target, inputs)
    codes = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert refusal.value.code() in codes
    assert words in refusal.value.details()
    if sum(array.size for array in inputs.values()) < 100 and "among" not in attack:
        body, path = json.dumps(document(inputs)).encode(), f"/v2/models/{SPEC.name}/infer"
        status, answer = post(target, body, path=path)
        assert status in (400, 429) and answer["error"]
    check_goes_on(target, trained)


def test_a_sequence_of_millions_of_ids_is_refused_and_a_long_one_cut(
    target: RunningServer, trained: SequenceModel
) -> None:
    def shared(count: int) -> dict[str, NDArray[Any]]:
        members = {"seen": np.full((1, count), 7), "action": np.ones((1, count), np.int64)}
        numbers = {"age": np.ones((1, count)), "place": np.zeros((1, count, 2))}
        return members | {name: array.astype(np.float32) for name, array in numbers.items()}

    others = {name: SENT[name] for name in ("price", "candidate")}
    with pytest.raises(grpc.RpcError, match="ids: expected at most 2097152, got"):
        infer(target, others | shared(2**23 // 16))
    whole, cut = infer(target, others | shared(2**15)), infer(target, others | shared(6))
    np.testing.assert_allclose(whole, cut, atol=1e-6)
    check_goes_on(target, trained)


def test_a_history_with_nan_is_refused_by_our_protocol(target: RunningServer) -> None:
    user = {name: SENT[name][None] for name in MEMBERS} | {"age": NAN, "price": 1.0}
    with Client(target.grpc_url) as client, pytest.raises(PredictError, match="got nan"):
        client.predict(SPEC.name, user=user, candidates={"candidate": [1, 2]}, timeout_seconds=60.0)
