"""Servers of plans for GPUs, which are simulated: real processes, whole requests."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient.grpc import service_pb2

from sharded_infer.engines.model import open_model
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ServingSpec
from tests.support.server_pages import samples
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    publish_ranker,
    ranker_spec,
    run,
    running_server,
    scores_of,
)

PLAN = ("--topology", "h100:2")
# Few sizes to capture.
SPEC = replace(ranker_spec(), serving=ServingSpec(max_batch=32))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    made = publish_ranker(tmp_path_factory.mktemp("host"))
    repository = tmp_path_factory.mktemp("cards")
    published = publish(SPEC, made.tables, made.tower, repository, topologies=("h100:2", "cpu:1"))
    return Ranker(repository, open_model(published.path), made.tables, made.tower)


@pytest.fixture(scope="module")
def server(planned: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("log") / "log"
    with running_server(planned.repository, log, *PLAN, "--simulate-gpus") as server:
        yield server


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_scores_are_those_of_the_host(server: RunningServer, planned: Ranker, batch: int) -> None:
    inputs = good_inputs(batch)
    expected = planned.predict(inputs)
    with server.stub() as stub:
        found = scores_of(stub.ModelInfer(infer_request(inputs), timeout=60))
    for name, scores in expected.items():
        np.testing.assert_allclose(found[name], scores, atol=1e-4)


def test_batches_count_at_the_sizes_of_their_graphs(server: RunningServer) -> None:
    with server.stub() as stub:
        before = batch_counts(stub)
        # 40 is more than the largest graph has.
        for size in (1, 5, 7, 17, 31, 40):
            stub.ModelInfer(infer_request(good_inputs(size)), timeout=60)
        counts = batch_counts(stub)
    counts.subtract(before)
    assert +counts == {1: 1, 8: 2, 32: 2, 40: 1}


def batch_counts(stub: Any) -> Counter[int]:
    [found] = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=MODEL)).model_stats
    return Counter({one.batch_size: one.compute_infer.count for one in found.batch_stats})


def test_ranks_show_their_memory_and_rows(server: RunningServer) -> None:
    page = samples(server.metrics_url)

    def by_rank(name: str) -> dict[str, float]:
        return {dict(key[1])["rank"]: value for key, value in page.items() if key[0] == name}

    memory = by_rank("sharded_infer_rank_memory_bytes")
    assert set(memory) >= {"0", "1"} and memory["0"] > 0 and memory["1"] > 0
    assert server.ready["models"][0]["topology"] == "h100:2"
    assert set(server.ready["models"][0]["kernels"].values()) == {"simulated"}
    log = server.log.read_text()
    assert "cuda:0: " in log and "estimated" in log and "held by this process" in log


def test_a_swap_on_devices_fails_no_request(planned: Ranker, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish(SPEC, planned.tables, planned.tower, repository, topologies=("h100:2",))
    words = (*PLAN, "--simulate-gpus", "--poll-seconds", 0.2)
    with running_server(repository, tmp_path / "log", *words) as server, server.stub() as stub:
        request = infer_request(good_inputs(3))
        publish(SPEC, planned.tables, planned.tower, repository, topologies=("h100:2",))
        versions = set()
        while "2" not in versions:
            versions.add(stub.ModelInfer(request, timeout=60).model_version)
            # The load has the cores too.
            time.sleep(0.02)
        assert versions <= {"1", "2"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_server_says_for_what_and_what_else_can_be_done(
    planned: Ranker, tmp_path: Path
) -> None:
    ports = ("--port", 0, "--http-port", 0)
    ended = run("serve", "-r", planned.repository, *ports, *PLAN)
    assert ended.returncode == 1
    named = f"model {planned.model.name!r} version 1: its plan for 'h100:2' needs GPUs: no CUDA"
    assert ended.stderr.count(named) == 1, ended.stderr
    for way_out in ("--topology cpu:1 takes", "--simulate-gpus"):
        assert way_out in ended.stderr
    publish(SPEC, planned.tables, planned.tower, tmp_path / "cards", topologies=("h100:2",))
    ended = run("serve", "-r", tmp_path / "cards", *ports)
    assert "publish --topology cpu:N" in ended.stderr and "--simulate-gpus" in ended.stderr


def test_gpus_have_one_process(planned: Ranker) -> None:
    words = (*PLAN, "--simulate-gpus", "--workers", 2)
    ended = run("serve", "-r", planned.repository, "--port", 0, "--http-port", 0, *words)
    assert ended.returncode == 1
    assert "GPUs are served by one process, expected --workers 1" in ended.stderr
