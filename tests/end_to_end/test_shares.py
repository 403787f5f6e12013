"""Versions that share the requests by weights of their labels, with real servers and clients."""

import queue
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from serving.routing.weighted_choice import choose, key_position, name_hash
from sharded_infer.client import Client
from sharded_infer.repositories.repository import Repository
from tests.support.server_pages import counted, metric
from tests.support.servers import MODEL, RunningServer, good_inputs, running_server
from tests.support.traffic import BATCH, Publisher, ask, client_of, states, traffic, triton_inputs
from tests.support.waiting import until

FOLLOW = ("--poll-seconds", 0, "--follow", "labels:stable")
KEYS: list[str | int] = [
    *(f"user-{at}" for at in range(40)),
    "\u00fcml\u00e4ut",
    -7,
    *range(10**6, 10**6 + 40),
]


def expected_label(key: str | int, weights: dict[str, int]) -> str:
    """The label of a key, by the documented function."""
    data = key.encode() if isinstance(key, str) else key.to_bytes(8, "little", signed=True)
    labels = sorted(weights)
    shares = [(name_hash(label), weights[label]) for label in labels]
    return labels[choose(key_position(data, name_hash(MODEL)), shares)]


def grpc_answer(client: Any, key: str | int | None = None) -> tuple[int, str]:
    """Version and label of an answer."""
    result = client.infer(
        MODEL,
        triton_inputs(good_inputs(BATCH)),
        parameters=None if key is None else {"routing_key": key},
    ).get_response()
    return int(result.model_version), result.parameters["label"].string_param


def stream_answer(client: Any, key: str | int) -> tuple[int, str]:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(
        MODEL, triton_inputs(good_inputs(BATCH)), parameters={"routing_key": key}
    )
    result, error = answers.get(timeout=60)
    client.stop_stream()
    assert error is None, error
    response = result.get_response()
    return int(response.model_version), response.parameters["label"].string_param


def http_answer(client: Any, key: str | int | None = None) -> tuple[int, str]:
    result = client.infer(
        MODEL,
        triton_inputs(good_inputs(BATCH), triton_http),
        parameters=None if key is None else {"routing_key": key},
    ).get_response()
    return int(result["model_version"]), result.get("parameters", {}).get("label", "")


def weigh(server: RunningServer, repository: Repository, weights: dict[str, int]) -> None:
    """Sets weights, and waits until the server has them."""
    repository.set_weights(MODEL, weights)
    labels, total = repository.labels(MODEL), sum(weights.values())
    shares = dict.fromkeys(("1", "2"), 0.0)
    for label, weight in (weights or {"stable": 1}).items():
        shares[str(labels[label])] += weight / (total or 1)
    server.process.send_signal(signal.SIGHUP)

    def has_them() -> bool:
        found = metric(server, "version_share")
        return all(
            found.get(version, 0.0) == pytest.approx(share) for version, share in shares.items()
        )

    until(has_them, f"the weights {weights}")


@pytest.fixture
def repository(publisher: Publisher) -> Repository:
    publisher.good()
    repository = Repository(publisher.repository)
    for number, label in enumerate(("stable", "canary"), 1):
        repository.set_label(MODEL, label, number)
    return repository


def test_versions_share_the_requests_by_key_in_every_protocol(
    publisher: Publisher, repository: Repository, tmp_path: Path
) -> None:
    versions = {"stable": 1, "canary": 2}
    options = (*FOLLOW, "--workers", 2)
    with (
        running_server(publisher.repository, tmp_path / "log", *options) as server,
        client_of(server) as grpc_client,
        triton_http.InferenceServerClient(server.http_address) as http,
        Client(server.grpc_url) as ours,
    ):
        assert grpc_answer(grpc_client, "user-1") == http_answer(http, "user-1") == (1, "")
        seen = []
        for weights in ({"stable": 80, "canary": 20}, {"stable": 60, "canary": 40}):
            weigh(server, repository, weights)
            found = {key: grpc_answer(grpc_client, key) for key in KEYS}
            wanted = {key: expected_label(key, weights) for key in KEYS}
            assert found == {key: (versions[label], label) for key, label in wanted.items()}
            assert {key: http_answer(http, key) for key in KEYS} == found
            assert {key: stream_answer(grpc_client, key) for key in KEYS[::20]} == {
                key: found[key] for key in KEYS[::20]
            }
            for key in KEYS[::4]:
                inputs = good_inputs(BATCH)
                names = ("dense", "user", "item", "category", "brand")
                candidates = {name: inputs[name] for name in names}
                answer = ours.predict(MODEL, candidates=candidates, routing_key=key)
                assert (answer.version, answer.label) == found[key]
            seen.append(Counter(wanted.values()))
        assert seen[0]["canary"] < seen[1]["canary"]
        # Names still mean what they say, and no label is told.
        assert ask(grpc_client, "canary").version == 2
        assert ask(grpc_client, "1").version == 1
        # Without a key chance decides: six standard deviations.
        drawn = Counter(grpc_answer(grpc_client) for _ in range(100))
        assert set(drawn) == {(1, "stable"), (2, "canary")} and 10 <= drawn[2, "canary"] <= 70
        for wrong in (True, 1.5):
            with pytest.raises(InferenceServerException, match="expected string_param or int64"):
                grpc_answer(grpc_client, wrong)
        weigh(server, repository, {})
        assert {grpc_answer(grpc_client, key) for key in KEYS[:20]} == {(1, "")}


def test_weights_change_under_traffic_and_no_request_fails(
    publisher: Publisher, repository: Repository, tmp_path: Path
) -> None:
    repository.set_weights(MODEL, {"stable": 95, "canary": 5})
    options = (*FOLLOW, "--workers", 2)
    with (
        running_server(publisher.repository, tmp_path / "log", *options) as server,
        client_of(server) as client,
        traffic(server) as seen,
    ):
        for canary in (50, 100):
            weights = {"canary": canary, **({"stable": 50} if canary == 50 else {})}
            weigh(server, repository, weights)
            answered = len(seen.answers)
            until(lambda: len(seen.answers) >= answered + 100, "traffic goes on")  # noqa: B023
            assert 2 in {answer.version for answer in seen.answers[answered:]}
        # A version that cannot be loaded gets nothing: its label means the one before.
        broken = publisher.with_flipped_bit()
        repository.set_label(MODEL, "canary", broken)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "altered" in states(client).get(broken, ("", ""))[1], "it is refused")
        assert grpc_answer(client, "a") == (2, "canary")
        assert counted(server, "sharded_infer_requests_total", version="2", code="OK") > 0
    assert seen.errors() == []
    assert seen.wrong(publisher.expected) == []
