"""Our own predict calls, by our own client, against a server started as users start it."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sharded_infer.client import Bags, CallSettings, Client, PredictError
from tests.support.server_processes import workers_of
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    running_server,
)

BATCH = 5
# Clients of one process share connections otherwise.
OWN_POOL = (("grpc.use_local_subchannel_pool", 1),)
SETTINGS = CallSettings(timeout_seconds=20)


@pytest.fixture(scope="module")
def own_server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("served") / "log"
    options = ("--executor", "inline", "--max-batch", 64)
    with running_server(ranker.repository, log, *options) as server:
        yield server


@pytest.fixture
def client(own_server: RunningServer) -> Iterator[Client]:
    with Client(own_server.grpc_url, SETTINGS) as client:
        yield client


def candidates() -> dict[str, object]:
    inputs = good_inputs(BATCH)
    weights = inputs["category.weights"].reshape(-1)
    return {
        **{name: inputs[name] for name in ("dense", "user", "item", "brand")},
        "history": Bags(inputs["history"], inputs["history.lengths"]),
        "category": Bags(inputs["category"].reshape(-1), [3] * BATCH, weights),
    }


def check_scores(found: dict[str, NDArray[np.float32]], ranker: Ranker) -> None:
    wanted = ranker.predict(good_inputs(BATCH))
    assert set(found) == set(wanted)
    for name, scores in wanted.items():
        np.testing.assert_array_equal(found[name], scores)


def test_scores_are_the_models_to_the_bit(client: Client, ranker: Ranker) -> None:
    answer = client.predict(MODEL, candidates=candidates(), request_id="r-1")
    check_scores(answer.scores, ranker)
    assert (answer.model, answer.version, answer.request_id) == (MODEL, 1, "r-1")
    timing = answer.timing
    # Seconds, not thousandths of them: no call takes a minute.
    assert 0 < timing.lookup_seconds < 60 and 0 < timing.tower_seconds < 60
    assert 0 < timing.decode_seconds < 60 and 0 <= timing.queue_seconds < 60


def test_what_the_user_brings_is_shared_by_all_candidates(client: Client, ranker: Ranker) -> None:
    inputs = candidates()
    del inputs["user"], inputs["brand"]
    apart = client.predict(MODEL, user={"user": 7, "brand": [1, 2]}, candidates=inputs)
    repeated = {"user": [7] * BATCH, "brand": [[1, 2]] * BATCH, **inputs}
    together = client.predict(MODEL, candidates=repeated)
    for name, scores in together.scores.items():
        np.testing.assert_array_equal(apart.scores[name], scores)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"model": "other"}, "NOT_FOUND", "no model 'other'"),
        ({"user": {"usr": 1}}, "INVALID_ARGUMENT", "feature 'usr'.*did you mean 'user'"),
        (
            {"user": {"user": 50, "dense": [0.0] * 4}},
            "INVALID_ARGUMENT",
            "'user', sample 0: id 50",
        ),
        ({"candidates": {"item": [1] * 65}}, "RESOURCE_EXHAUSTED|INVALID_ARGUMENT", "65|dense"),
        ({}, "INVALID_ARGUMENT", "no inputs"),
    ],
)
def test_mistakes_are_named(
    client: Client, fields: dict[str, object], code: str, words: str
) -> None:
    with pytest.raises(PredictError, match=f"({code}): .*({words})"):
        client.predict(**({"model": MODEL} | fields))  # type: ignore[arg-type]


def test_retries_bridge_the_death_of_a_worker(ranker: Ranker, tmp_path: Path) -> None:
    with running_server(ranker.repository, tmp_path / "log", "--workers", 2) as server:
        clients = [Client(server.grpc_url, replace(SETTINGS, options=OWN_POOL)) for _ in range(8)]
        victim = workers_of(server)[0]
        for client in clients:
            client.predict(MODEL, candidates=candidates())
        os.kill(victim, signal.SIGKILL)
        for client in clients:
            for _ in range(5):
                check_scores(client.predict(MODEL, candidates=candidates()).scores, ranker)
            client.close()
