"""`cluster up`, `status`, `roll` and `down`, on several nodes of Ray on this machine."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.support.ray_nodes import RayNodes, ray_nodes
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request, run, scores_of
from tests.support.shard_host_processes import publish_for_hosts
from tests.support.waiting import until

pytestmark = [
    pytest.mark.timeout(1800),
    # Ray leaves its own to the collector.
    pytest.mark.filterwarnings("ignore"),
]
SECONDS = 480.0
# The front has host 0; no rank holds more.
HOSTS = 3
RANK_BYTES = 1400
NODES = 4
# Room for two processes: one node less still has places for all five.
PROCESS_BYTES, NODE_BYTES = 1500, 3100
NAMES = ["host-1-0", "host-2-0", "host-1-1", "host-2-1", "front-0"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(NODES, memory=NODE_BYTES) as started:
        yield started


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_for_hosts(tmp_path_factory.mktemp("ray"), HOSTS, RANK_BYTES)


def cluster_file(folder: Path, ranker: Ranker, address: str, memory: str = "1.5KB") -> Path:
    file = folder / "cluster.toml"
    host = f'replicas = 2\nmemory = "{memory}"\n'
    file.write_text(
        f'name = "ranker"\nrepository = "{ranker.repository}"\n'
        '[fronts]\nmemory = "1.5KB"\nsecurity = { insecure = true }\n'
        "settings = { grace_seconds = 0, slots = 1 }\n"
        "[shard_hosts]\nsecurity = { insecure = true }\nsettings = { slots = 1 }\n"
        f"[hosts.1]\n{host}[hosts.2]\n{host}"
        "[lookups]\ntimeout_ms = 60000\n"
        f'[ray]\naddress = "{address}"\n'
    )
    return file


def told(*words: object, code: int | None = 0) -> dict[str, Any]:
    done = run("cluster", *words, "--json", seconds=SECONDS)
    assert done.stdout and (code is None or done.returncode == code), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found["processes"]}


def check(address: str, ranker: Ranker, seed: int) -> None:
    inputs = good_inputs(7, seed)
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        found = scores_of(stub.ModelInfer(infer_request(inputs), timeout=60))
    expected = ranker.predict(inputs)
    assert found.keys() == expected.keys()
    for name, scores in expected.items():
        np.testing.assert_array_equal(found[name], scores)


def front_of(found: dict[str, dict[str, Any]]) -> str:
    return str(found["front-0"]["address"])


def is_gone(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_does_not_fit_is_said_and_leaves_nothing(
    nodes: RayNodes, published: Ranker, tmp_path: Path
) -> None:
    file = cluster_file(tmp_path, published, nodes.address, memory="20GB")
    done = run("cluster", "up", file, seconds=SECONDS)
    assert done.returncode == 1
    assert "host 1 wants 20.0 GB, no node has more than 3.10 kB free" in done.stderr
    found = told("status", file, code=1)
    assert {one["state"] for one in found["processes"]} == {"missing"}
    assert told("down", file) == {"ended": 0}


def test_a_cluster_that_is_not_there_is_named(published: Ranker, tmp_path: Path) -> None:
    file = cluster_file(tmp_path, published, "127.0.0.1:1")
    done = run("cluster", "status", file, seconds=SECONDS)
    assert done.returncode == 1
    assert "expected auto or HOST:PORT of Ray's head, got '127.0.0.1:1'" in done.stderr


def test_processes_come_back_wherever_there_is_room_and_are_replaced_one_by_one(
    nodes: RayNodes, published: Ranker, tmp_path: Path
) -> None:
    assert sum(published.model.rank_bytes) > NODE_BYTES
    file = cluster_file(tmp_path, published, nodes.address)
    try:
        first = by_name(told("up", file, "--timeout", SECONDS))
        assert list(first) == NAMES
        assert {one["state"] for one in first.values()} == {"ready"}
        assert {tuple(one["versions"]) for one in first.values()} == {(f"{MODEL}@1",)}
        for host in (1, 2):
            assert first[f"host-{host}-0"]["node_id"] != first[f"host-{host}-1"]["node_id"]
        check(front_of(first), published, 1)

        # What runs stays.
        again = by_name(told("up", file))
        assert [one["process_id"] for one in again.values()] == [
            one["process_id"] for one in first.values()
        ]

        # Another cluster is told what the first one holds: at most one node is empty.
        (tmp_path / "other").mkdir()
        other = cluster_file(tmp_path / "other", published, nodes.address, memory="3KB")
        other.write_text(other.read_text().replace('"ranker"', '"other"', 1))
        done = run("cluster", "up", other, seconds=SECONDS)
        assert done.returncode == 1
        assert re.search(
            "host 1 wants (3.00 kB, no node has more than 1.60 kB free|"
            "2 nodes with 3.00 kB and 1 CPU free each, only 1 of 5 has that)",
            done.stderr,
        )

        os.kill(first["host-1-0"]["process_id"], signal.SIGKILL)
        until(
            lambda: by_name(told("status", file, code=None))["host-1-0"]["restarts"] >= 1,
            "it is back",
        )
        until(lambda: told("status", file, code=None)["ready"], "all are ready")
        check(front_of(first), published, 2)

        # A node without the front is lost: its replicas answer, and move.
        lost = next(
            one["node_id"]
            for one in first.values()
            if one["node_id"] != first["front-0"]["node_id"]
        )
        moved = {name for name, one in first.items() if one["node_id"] == lost}
        nodes.cluster.remove_node(nodes.workers.pop(lost), allow_graceful=False)
        until(lambda: all(is_gone(first[name]["process_id"]) for name in moved), "they ended")
        for seed in range(20):
            check(front_of(first), published, seed)
        until(lambda: told("status", file, code=None)["ready"], "all are ready again", SECONDS)
        second = by_name(told("status", file))
        assert lost not in {one["node_id"] for one in second.values()}
        for host in (1, 2):
            assert second[f"host-{host}-0"]["node_id"] != second[f"host-{host}-1"]["node_id"]
        assert all(second[name]["restarts"] == 1 for name in moved)
        check(front_of(second), published, 3)

        rolled = by_name(told("roll", file, "--timeout", SECONDS))
        for name, one in rolled.items():
            assert one["state"] == "ready" and is_gone(second[name]["process_id"])
        check(front_of(rolled), published, 4)
    finally:
        ended = told("down", file)
    assert ended == {"ended": len(NAMES)}
    assert all(is_gone(one["process_id"]) for one in rolled.values())
    assert {one["state"] for one in told("status", file, code=1)["processes"]} == {"missing"}
