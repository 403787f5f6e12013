"""Our own predict calls, by our own client, against a server started as users start it."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharded_infer.client import Bags, CallSettings, Client
from tests.support.server_processes import workers_of
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    check_bits,
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


def test_scores_are_the_models_to_the_bit(client: Client, ranker: Ranker) -> None:
    answer = client.predict(MODEL, candidates=candidates(), request_id="r-1")
    check_bits(answer.scores, ranker.predict(good_inputs(BATCH)))
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
    check_bits(apart.scores, together.scores)


def test_retries_bridge_the_death_of_a_worker(ranker: Ranker, tmp_path: Path) -> None:
    with running_server(ranker.repository, tmp_path / "log", "--workers", 2) as server:
        clients = [Client(server.grpc_url, replace(SETTINGS, options=OWN_POOL)) for _ in range(8)]
        victim = workers_of(server)[0]
        for client in clients:
            client.predict(MODEL, candidates=candidates())
        os.kill(victim, signal.SIGKILL)
        for client in clients:
            for _ in range(5):
                answer = client.predict(MODEL, candidates=candidates())
                check_bits(answer.scores, ranker.predict(good_inputs(BATCH)))
            client.close()
