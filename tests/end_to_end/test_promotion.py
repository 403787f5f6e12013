"""Promotions with a real server and clients that send keys: good versions, worse ones, a kill."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import time

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from tritonclient.utils import InferenceServerException

from serving.errors import PromotionError
from serving.remote.promotion.promoter import PromotionPlan, promote
from sharded_infer import ModelSpec, Repository, publish
from sharded_infer.specs.release_spec import ReleaseSpec
from tests.support.server_pages import metric
from tests.support.servers import (
    MODEL,
    RankerTower,
    RunningServer,
    good_inputs,
    killed_at_end,
    ranker_spec,
    run,
    running_server,
    start_command,
)
from tests.support.traffic import BATCH, client_of, triton_inputs
from tests.support.waiting import until

FOLLOW = ("--follow", "labels:stable,canary", "--poll-seconds", 0.2)
# Request times depend on what else the machine does, so only the slow version is judged by them.
BOUNDS = ReleaseSpec(max_score_shift=0.5, max_error_rate=0.02)
TIMES = ReleaseSpec(max_p99_ratio=2.0)
# A share that is large enough to tell soon; a version that is worse is taken back before its end.
PLAN = PromotionPlan(steps=(10,), watch_seconds=60.0)
# A busy promoter may be late to renew it.
LEASE = ("--lease", "10s")


class SlowTower(RankerTower):
    """The same scores, after many products of matrices."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.wide = nn.Linear(width, 1024)
        self.long = nn.Linear(1024, 1024)

    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        waste = self.wide(embeddings)
        for _ in range(80):
            waste = torch.tanh(self.long(waste))
        scores = super().forward(dense, embeddings)
        return {**scores, "score": scores["score"] + 1e-12 * waste.sum(1)}


def put(repository: Path, kind: str) -> int:
    """Publishes a version with the bounds; of the same weights, but for what the kind changes."""
    spec = replace(ranker_spec(), release=TIMES if kind == "slower" else BOUNDS)
    if kind == "failing":
        spec = with_refused_ids(spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        tables = {
            t.name: nn.EmbeddingBag(t.rows, t.dim, mode=t.pooling or "sum") for t in spec.tables
        }
        tower = (SlowTower if kind == "slower" else RankerTower)(spec.embedding_width)
    if kind == "shifted":
        with torch.no_grad():
            tower.score.bias += 3.0
    return publish(spec, tables, tower, repository, topologies=("cpu:1",)).version


def with_refused_ids(spec: ModelSpec) -> ModelSpec:
    """The ids outside `item` that `stable` ignores are errors."""
    tables = (replace(t, out_of_range="error") if t.name == "item" else t for t in spec.tables)
    return replace(spec, tables=tuple(tables))


@contextmanager
def keyed_traffic(server: RunningServer, clients: int = 2) -> Iterator[None]:
    """Asks from several clients without end, each time with another key; errors are expected."""
    stop, keys = threading.Event(), count()

    def ask() -> None:
        with client_of(server) as client:
            while not stop.is_set():
                key = next(keys)
                inputs = good_inputs(BATCH, key)
                inputs["item"] = np.full((BATCH, 1), 97 if key % 4 == 0 else key % 97)
                with suppress(InferenceServerException):
                    client.infer(MODEL, triton_inputs(inputs), parameters={"routing_key": key})

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def served(folder: Path, kind: str) -> Iterator[tuple[Repository, RunningServer]]:
    """A server under load whose label `canary` means a version of the kind."""
    place = folder / "models"
    repository = Repository(place)
    repository.set_label(MODEL, "stable", put(place, "good"))
    repository.set_label(MODEL, "canary", put(place, kind))
    with running_server(place, folder / "log", *FOLLOW) as server:
        until(lambda: metric(server, "label_version").get("canary") == 2.0, "both are loaded")
        with keyed_traffic(server):
            yield repository, server


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("shifted", "the mean of score is shifted by"),
        ("slower", "p99 .* x stable's, 2 allowed"),
        ("failing", "requests fail, 0.00% of stable's, 2.00% more allowed"),
    ],
)
def test_a_version_that_is_worse_is_taken_back_by_itself(
    tmp_path: Path, kind: str, words: str
) -> None:
    with served(tmp_path, kind) as (repository, server):
        with pytest.raises(PromotionError, match=f"taken back from 10%: .*{words}"):
            promote(repository, MODEL, [server.metrics_url], PLAN)
        labels = repository.label_history(MODEL)
        assert (labels.versions["stable"], labels.weights) == (1, {"stable": 100})
        assert labels.ended["canary"][0].reason.startswith("taken back from 10%")
        until(lambda: metric(server, "version_share").get("1") == 1.0, "all requests are stable's")


def test_a_good_version_is_promoted_though_its_promoter_is_killed(tmp_path: Path) -> None:
    with served(tmp_path, "good") as (repository, server):
        words = ("repo", "promote", repository.location, MODEL, "--server", server.metrics_url)
        errors = tmp_path / "promoter"
        with errors.open("w") as stderr:
            watched = ("--steps", "20,50", "--watch", "40s", *LEASE)
            with killed_at_end(start_command(*words, *watched, stderr=stderr)) as promoter:

                def is_half() -> bool:
                    assert promoter.poll() is None, errors.read_text()
                    return metric(server, "version_share").get("2") == 0.5

                until(is_half, "the second step")
        # Nobody promotes: the server gives the version back when the lease is over.
        until(lambda: metric(server, "version_share").get("1") == 1.0, "all requests are stable's")
        left = repository.label_history(MODEL).promotion
        assert left is not None and left.step == 1 and left.has_expired(time())
        watch = ("repo", "watch", server.grpc_url, "-r", repository.location, "--timeout", 0)
        assert "step 2 of 2" in run(*watch).stdout
        done = run(*words, "--resume", *LEASE)
        assert done.returncode == 0, done.stderr
        assert "step 2 of 2, 50%" in done.stdout and "version 2 is promoted" in done.stdout
        labels = repository.label_history(MODEL)
        assert (labels.versions["stable"], labels.weights, labels.ended) == (2, {}, {})
        until(lambda: metric(server, "label_version").get("stable") == 2.0, "stable is version 2")
