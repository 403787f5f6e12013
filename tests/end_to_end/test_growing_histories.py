"""States of growing histories in real servers: workers, replicas, prepare and its errors."""

import asyncio
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
from numpy.typing import NDArray
from torch import nn

from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.remote.scraped_metrics import scraped_samples
from sharded_infer import open_model
from sharded_infer.client import AsyncClient, Client, PredictError
from sharded_infer.engines.model import Model
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.precision import Precision
from sharded_infer.v1 import predictor_pb2, predictor_pb2_grpc
from tests.support.live_page import chromium_refusal, opened
from tests.support.servers import RunningServer, running_server
from tests.support.waiting import until

pytestmark = pytest.mark.rest

NAME, ITEMS, LONGEST, CANDIDATES = "hstu-small", 500, 120, 7
BLOCK = 16
REPLICAS = 2
_REFUSAL = chromium_refusal()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("growing")
    chosen = SEQUENCE_MODELS[NAME]
    spec = chosen.spec(rows=ITEMS, history=LONGEST, precision=Precision.FP32)
    publish(spec, {"item": nn.Embedding(ITEMS, 64)}, chosen.tower(LONGEST), folder)
    return folder


@pytest.fixture(scope="module")
def model(repository: Path) -> Model:
    """Without a cache of users' states."""
    return open_model(repository / NAME / "1")


@pytest.fixture(scope="module")
def replicas(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RunningServer]]:
    with ExitStack() as stack:
        logs = tmp_path_factory.mktemp("logs")
        options = ("--workers", 4, "--user-cache-mib", 64)
        yield [
            stack.enter_context(
                running_server(repository, logs / f"{number}.log", *options, exit_code=None)
            )
            for number in range(REPLICAS)
        ]


def history(user: int, length: int) -> dict[str, NDArray[np.generic]]:
    generator = np.random.default_rng(user)
    ids = generator.integers(0, ITEMS, LONGEST)
    ages = np.sort(generator.exponential(1e6, LONGEST).astype(np.float32))[::-1]
    return {"history": ids[None, :length], "age": np.ascontiguousarray(ages[None, :length, None])}


def candidates(seed: int) -> dict[str, NDArray[np.generic]]:
    return {"candidate": np.random.default_rng((1, seed)).integers(0, ITEMS, CANDIDATES)}


def check(client: Client, model: Model, user: int, length: int, key: int | None) -> None:
    chosen = candidates(length)
    answer = client.predict(
        NAME, user=history(user, length), candidates=chosen, routing_key=key, timeout_seconds=30
    )
    expected = model.predict({**history(user, length), **chosen})["score"]
    assert np.array_equal(answer.scores["score"], expected)


def positions(servers: list[RunningServer]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for server in servers:
        for sample in scraped_samples(server.metrics_url):
            if sample.name == "sharded_infer_user_positions_total":
                counts[sample.labels["result"]] += int(sample.value)
    return counts


def kept_share(
    replicas: list[RunningServer], model: Model, users: range, *, has_key: bool
) -> float:
    """Share of positions that were kept, of users' first 40 positions on, every third position."""
    before = positions(replicas)
    lengths = range(40, LONGEST, 3)
    with Client([server.grpc_url for server in replicas]) as client:
        for length in lengths:
            for user in users:
                check(client, model, user, length, user if has_key else None)
    expected = len(users) * sum(lengths)

    def since() -> Counter[str]:
        return positions(replicas) - before

    until(lambda: since().total() == expected, "all positions are counted")
    return since()["kept"] / expected


def test_a_key_sends_a_user_to_the_replica_that_keeps_their_state(
    replicas: list[RunningServer], model: Model
) -> None:
    with_key = kept_share(replicas, model, range(7), has_key=True)
    without = kept_share(replicas, model, range(100, 107), has_key=False)
    # Workers share states: what a user's last block costs, and their first request.
    assert with_key > 0.85
    # Each replica has every second request of a user: both compute all blocks.
    assert 0.6 < without < with_key


def test_a_prepared_user_is_known_to_every_worker(
    replicas: list[RunningServer], model: Model
) -> None:
    with Client([server.grpc_url for server in replicas]) as client:
        for user in range(200, 205):
            client.prepare(NAME, user=history(user, 90), routing_key=user, timeout_seconds=30)
            before = positions(replicas)
            check(client, model, user, 90, user)
            until(lambda: (positions(replicas) - before).total() == 90, "it is counted")  # noqa: B023
            assert (positions(replicas) - before)["kept"] == 90 // BLOCK * BLOCK


@pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or "")
def test_the_live_page_draws_the_share_of_positions_whose_states_are_kept(
    browser: Any,
    replicas: list[RunningServer],
    model: Model,
) -> None:
    server = replicas[0]
    with Client(server.grpc_url) as client, opened(browser, server.http_url) as live:

        def shares() -> str:
            check(client, model, 400, LONGEST, None)
            return live.page.locator("figure", has=live.page.locator("#chart-kept")).inner_text()

        # Each point is of the last 10 s.
        live.wait(lambda: "positions 93.3%\nusers 100%" in shares(), "112 of 120 positions")
        assert live.errors == []


def test_prepare_answers_over_http_with_its_positions(replicas: list[RunningServer]) -> None:
    user = history(300, 50)
    body = {
        "inputs": [
            {"name": name, "shape": list(array.shape), "datatype": kind, "data": array.tolist()}
            for kind, (name, array) in zip(("INT64", "FP32"), user.items(), strict=True)
        ]
    }
    url = f"{replicas[0].http_url}/v2/models/{NAME}/prepare"
    first, second = (requests.post(url, json=body, timeout=30).json() for _ in range(2))
    assert first["known_positions"] == 0 and first["computed_positions"] == 50
    assert second["known_positions"] == 48 and second["model_version"] == "1"
    body["inputs"] = [{"name": "candidate", "datatype": "INT64", "data": [1]}]
    refused = requests.post(url, json=body, timeout=30)
    assert refused.status_code == 400
    assert "expected the user's inputs, age, history" in refused.json()["error"]


def test_more_memory_for_states_than_there_is_is_refused(repository: Path) -> None:
    options = ("--port", "0", "--http-port", "0", "--user-cache-mib", str(1 << 30))
    words = [
        sys.executable,
        "-m",
        "serving.cli",
        "serve",
        "--repository",
        str(repository),
        *options,
    ]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert re.search(r"--user-cache-mib: expected at most \d+, the available", ended.stderr)


def test_prepare_says_when_no_states_are_kept(repository: Path, tmp_path: Path) -> None:
    with running_server(repository, tmp_path / "log") as server:
        with Client(server.grpc_url) as client, pytest.raises(PredictError) as refused:
            client.prepare(NAME, user=history(1, 20), timeout_seconds=30)
        assert "--user-cache-mib" in str(refused.value)
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = predictor_pb2_grpc.PredictorStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as missing:
                stub.Prepare(predictor_pb2.PredictRequest(model="none"), timeout=30)
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND


def test_users_of_a_dead_replica_go_to_another(
    repository: Path, model: Model, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                running_server(
                    repository, tmp_path / str(number), "--user-cache-mib", 8, exit_code=None
                )
            )
            for number in range(REPLICAS)
        ]
        with Client([server.grpc_url for server in servers]) as client:
            for user in range(6):
                check(client, model, user, 40, user)
            assert all(positions([server]).total() for server in servers)
            servers[0].process.send_signal(signal.SIGKILL)
            servers[0].process.wait()
            for user in range(6):
                check(client, model, user, 43, user)


def test_an_asynchronous_client_prepares_and_routes_alike(
    replicas: list[RunningServer], model: Model
) -> None:
    async def kept(user: int) -> int:
        async with AsyncClient([server.grpc_url for server in replicas]) as client:
            sent = {"user": history(user, 80), "routing_key": user, "timeout_seconds": 30}
            await client.prepare(NAME, **sent)
            before = positions(replicas)
            answer = await client.predict(NAME, candidates=candidates(user), **sent)
        expected = model.predict({**history(user, 80), **candidates(user)})["score"]
        assert np.array_equal(answer.scores["score"], expected)
        until(lambda: (positions(replicas) - before).total() == 80, "it is counted")
        return (positions(replicas) - before)["kept"]

    # The last position is computed with each request, and its block with it.
    assert [asyncio.run(kept(user)) for user in range(400, 404)] == [80 - BLOCK] * 4
