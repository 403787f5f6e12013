"""Default rows for a shard host that is killed or stopped, as clients of its front see them."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from serving.protocol.lookups.version_key import version_key
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from serving.remote_lookups.replica_group import MOST_FAILURES
from sharded_infer import open_model
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.client import Bags, CallSettings, Client
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.errors import RequestTooLargeError, ShardHostError
from sharded_infer.inputs.columns import columns_of
from sharded_infer.inputs.input_columns import input_arrays
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.lookups.placement import place_stored, share_of
from sharded_infer.lookups.shard_hosts import Front
from tests.support.fronts import SECONDS, hosts_file, is_of, running_hosts
from tests.support.server_pages import counted
from tests.support.servers import (
    MODEL,
    Arrays,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    json_inputs,
    run,
    running_server,
    scores_of,
)
from tests.support.shard_host_processes import (
    ShardHostProcess,
    publish_for_hosts,
    running_shard_host,
)
from tests.support.waiting import until

HOSTS, LOST = 2, 1
RANK_BYTES = 2000
STRICT = "strict"
PARAMETER = "sharded_infer_default_tables"
# Their small multiples are exact in fp32, so they add up alike in any order.
ROWS: dict[str, tuple[float, ...]] = {
    "user": (0.5,) * 8,
    "item": tuple(0.25 * column for column in range(16)),
    "category": (0.0,) * 4,
    "brand": (-1.0, 1.0) * 6,
}
# Above what a request may take: one that waits for a stopped host fails.
LONG, SHORT = f"timeout_ms = {2000 * SECONDS:.0f}", "timeout_ms = 200"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    """A model with default rows, beside one without in the same repository."""
    folder = tmp_path_factory.mktemp("defaults")
    publish_for_hosts(folder, HOSTS, RANK_BYTES, name=STRICT)
    return publish_for_hosts(folder, HOSTS, RANK_BYTES, default_rows={**ROWS, "category": "zeros"})


@contextmanager
def running_lost(ranker: Ranker, log: Path, *options: object) -> Iterator[ShardHostProcess]:
    """The host that is killed and stopped."""
    with running_shard_host(ranker.repository, LOST, log, *options, exit_code=None) as host:
        yield host
        with suppress(ProcessLookupError):
            os.kill(host.process.pid, signal.SIGCONT)


@contextmanager
def running_front(
    ranker: Ranker, folder: Path, hosts: Mapping[int, ShardHostProcess], more: str, *options: object
) -> Iterator[RunningServer]:
    named = ("--shard-hosts", hosts_file(folder, hosts, more))
    with running_server(ranker.repository, folder / "front", *named, *options) as server:
        yield server


class Expected(NamedTuple):
    """What a request gets without the host that is lost."""

    scores: Arrays
    tables: str


def without_host(ranker: Ranker, inputs: Arrays) -> Expected:
    """The model's tower on embeddings that were pooled anew, bag by bag, where an id is lost."""
    model, spec = ranker.model, ranker.model.spec
    model_input = make_input(spec, input_arrays(spec, columns_of(inputs)))
    embeddings = model.engine.embeddings(model_input)
    lost = share_of(place_stored(model.plan, model.artifact), LOST)
    column, tables = 0, set()
    for feature in spec.features:
        table, end = feature.table, column + feature.table.dim
        ranges = [
            (piece.first_row, piece.first_row + piece.rows)
            for piece in lost
            if piece.table.name == table.name
        ]
        for sample, (ids, weight) in enumerate(bags(inputs, feature.name)):
            if any(first <= one < last for one in ids for first, last in ranges):
                scale = weight / len(ids) if table.pooling == "mean" else weight
                embeddings[sample, column:end] = scale * torch.tensor(ROWS[table.name])
                tables.add(table.name)
        column = end
    scores = zip(spec.tower.outputs, model.score(model_input, embeddings), strict=True)
    return Expected({name: one.numpy() for name, one in scores}, ",".join(sorted(tables)))


def bags(inputs: Arrays, feature: str) -> Iterator[tuple[list[int], float]]:
    """Ids and the sum of their weights, by sample."""
    if feature not in inputs:
        return
    ids: NDArray[Any] = inputs[feature]
    if f"{feature}.lengths" in inputs:
        parts = np.split(ids, np.cumsum(inputs[f"{feature}.lengths"])[:-1])
        yield from ((part.tolist(), float(len(part))) for part in parts)
        return
    ids = ids.reshape(len(ids), -1)
    weights = inputs.get(f"{feature}.weights", np.ones(ids.shape, np.float32))
    yield from ((one.tolist(), float(w.sum())) for one, w in zip(ids, weights, strict=True))


def check_scores(found: Arrays, expected: Arrays) -> None:
    for name, scores in expected.items():
        np.testing.assert_allclose(found[name], scores, rtol=0, atol=1e-6)


def parameter(response: Any) -> str:
    return str(response.parameters[PARAMETER].string_param) if response.parameters else ""


def check(server: RunningServer, ranker: Ranker, batch: int, seed: int) -> None:
    """Asks without the host."""
    inputs = good_inputs(batch, seed)
    expected = without_host(ranker, inputs)
    with server.stub() as stub:
        response = stub.ModelInfer(infer_request(inputs), timeout=SECONDS)
    assert parameter(response) == expected.tables
    check_scores(scores_of(response), expected.scores)


def tables_of(server: RunningServer, seconds: float = SECONDS) -> str | None:
    """What a response says of default rows; None: there is none."""
    with server.stub() as stub:
        try:
            return parameter(stub.ModelInfer(infer_request(good_inputs(8)), timeout=seconds))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            return None


def is_whole(server: RunningServer, ranker: Ranker) -> bool:
    """Whether each thread of the front looks everything up again."""
    return not any(tables_of(server) for _ in range(20)) and is_of(server, ranker)


def over_rest(server: RunningServer, inputs: Arrays) -> tuple[Arrays, str]:
    document = {"inputs": json_inputs(inputs)}
    url = f"{server.http_url}/v2/models/{MODEL}/infer"
    with urllib.request.urlopen(url, json.dumps(document).encode(), SECONDS) as answer:  # noqa: S310
        read = json.loads(answer.read())
    scores = {
        one["name"]: np.array(one["data"], np.float32).reshape(one["shape"])
        for one in read["outputs"]
    }
    return scores, read.get("parameters", {}).get(PARAMETER, "")


def over_predict(server: RunningServer, inputs: Arrays) -> tuple[Arrays, str]:
    batch = len(inputs["user"])
    candidates = {
        **{name: inputs[name] for name in ("dense", "user", "item", "brand")},
        "history": Bags(inputs["history"], inputs["history.lengths"]),
        "category": Bags(
            inputs["category"].reshape(-1), [3] * batch, inputs["category.weights"].reshape(-1)
        ),
    }
    with Client(server.grpc_url, CallSettings(timeout_seconds=SECONDS)) as client:
        found = client.predict(MODEL, candidates=candidates)
    return found.scores, ",".join(found.default_tables)


def over_stream(server: RunningServer, inputs: Arrays) -> tuple[Arrays, str]:
    with server.stub() as stub:
        [answer] = stub.ModelStreamInfer(iter([infer_request(inputs)]), timeout=SECONDS)
    return scores_of(answer.infer_response), parameter(answer.infer_response)


def test_a_killed_host_costs_tables_with_default_rows_no_answer_and_each_answer_says_so(
    published: Ranker, tmp_path: Path
) -> None:
    inputs = good_inputs(8)
    expected = without_host(published, inputs)
    assert expected.tables
    with (
        running_hosts(published, tmp_path, (0,)) as others,
        running_lost(published, tmp_path / "lost") as lost,
        running_front(published, tmp_path, {**others, LOST: lost}, LONG) as front,
        ThreadPoolExecutor(8) as clients,
    ):
        assert is_whole(front, published)
        lost.process.kill()
        for ask in (over_rest, over_predict):
            scores, tables = ask(front, inputs)
            assert tables == expected.tables
            check_scores(scores, expected.scores)
        words = ("predict", "-", "--address", front.grpc_url, "--model", MODEL)
        said = run(*words, stdin=json.dumps({"dense": [0.0] * 4, "user": 3, "item": 9}))
        assert said.returncode == 0 and "warning: default rows of tables" in said.stderr
        # Batches of several; some requests have no id on the host.
        asked = [clients.submit(check, front, published, 1, seed) for seed in range(100)]
        for done in asked:
            done.result(SECONDS)
        own = {"dense": inputs["dense"]}
        with front.stub() as stub:
            nothing_lost = stub.ModelInfer(infer_request(own), timeout=SECONDS)
            assert not nothing_lost.parameters
            check_scores(scores_of(nothing_lost), published.predict(own))
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(infer_request(inputs, model=STRICT), timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"shard host {LOST} at {lost.address}" in refused.value.details()
        until(
            lambda: counted(front, "sharded_infer_shard_default_rows_total", host=str(LOST)) > 100,
            "rows are counted",
        )
        assert not counted(front, "sharded_infer_shard_default_rows_total", host="0")
        log = tmp_path / "front"
        said = f"shard host {LOST} cannot look its rows up: requests get default rows"
        until(lambda: log.read_text().count(said) == 1, "it is logged")
        port = lost.address.rpartition(":")[2]
        with running_lost(published, tmp_path / "again", "--port", port):
            until(lambda: is_whole(front, published), "the host is asked again")
            for ask in (over_rest, over_predict, over_stream):
                scores, tables = ask(front, inputs)
                assert tables == ""
                check_scores(scores, published.predict(inputs))


def test_a_stopped_host_is_waited_for_no_longer_than_a_lookup_and_then_not_at_all(
    published: Ranker, tmp_path: Path
) -> None:
    expected = without_host(published, good_inputs(8))
    with (
        running_hosts(published, tmp_path, (0,)) as others,
        running_lost(published, tmp_path / "lost") as lost,
        running_front(published, tmp_path, {**others, LOST: lost}, SHORT) as front,
    ):
        # A busy machine may take longer than a lookup may.
        until(lambda: is_whole(front, published), "each thread has asked the host")
        os.kill(lost.process.pid, signal.SIGSTOP)
        check(front, published, 8, 0)
        scores, tables = over_stream(front, good_inputs(8))
        assert tables == expected.tables
        check_scores(scores, expected.scores)
        os.kill(lost.process.pid, signal.SIGCONT)
        until(lambda: is_whole(front, published), "it is asked again")
        hosts_file(tmp_path, {**others, LOST: lost}, LONG)
        log = tmp_path / "front"
        until(lambda: "read anew" in log.read_text(), "lookups may take long")
        os.kill(lost.process.pid, signal.SIGSTOP)
        # Checks find it silent. Until then each request waits until its own deadline.
        until(lambda: tables_of(front, 3.0) == expected.tables, "requests do not wait for it")
        check(front, published, 8, 1)
        os.kill(lost.process.pid, signal.SIGCONT)
        until(lambda: is_whole(front, published), "it is asked again")


def test_golden_requests_never_pass_with_default_rows(published: Ranker) -> None:
    artifact = published.model.artifact
    addresses = dict.fromkeys(range(HOSTS), ("127.0.0.1:1",))
    clients = HostClients(HostSettings(addresses, SECONDS), answer_bytes=2**20)
    hosts = RemoteHosts(version_key(artifact.manifest), clients)
    front = open_model(artifact.path, front=Front(hosts))
    for _ in range(10):
        with pytest.raises(ShardHostError, match=r"shard host \d at 127.0.0.1:1: "):
            check_golden(front)
        [ran] = run_batch(front, [generate_samples(front.spec, 3)], may_default=True)
        assert set(ran.default_tables) == set(ROWS)


def test_an_answer_that_is_too_large_fails_its_request_and_no_other(
    published: Ranker, tmp_path: Path
) -> None:
    artifact = published.model.artifact
    with running_hosts(published, tmp_path, range(HOSTS)) as hosts:
        addresses = {number: (host.address,) for number, host in hosts.items()}
        clients = HostClients(HostSettings(addresses, SECONDS), answer_bytes=2000)
        front = open_model(
            artifact.path, front=Front(RemoteHosts(version_key(artifact.manifest), clients))
        )
        small, large = (generate_samples(front.spec, samples) for samples in (1, 200))
        # As many failures would eject the replicas.
        for _ in range(2 * MOST_FAILURES):
            with pytest.raises(RequestTooLargeError, match=r"at most 2000 are allowed"):
                run_batch(front, [large], may_default=True)
            [ran] = run_batch(front, [small], may_default=True)
            assert not ran.default_tables
