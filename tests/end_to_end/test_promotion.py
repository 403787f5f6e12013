"""Promotions with a real server and clients that send keys: good versions, worse ones, a kill."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import time

import pytest

from serving.errors import PromotionError
from serving.remote.promotion.promoter import PromotionPlan, promote
from sharded_infer import Repository
from sharded_infer.specs.release_spec import ReleaseSpec
from tests.support.server_pages import metric
from tests.support.servers import (
    MODEL,
    RunningServer,
    good_inputs,
    killed_at_end,
    publish_ranker,
    run,
    running_server,
    start_command,
)
from tests.support.traffic import BATCH, client_of, triton_inputs
from tests.support.waiting import in_threads, until

FOLLOW = ("--follow", "labels:stable,canary", "--poll-seconds", 0.2)
# Not of request times, which depend on what else the machine does.
BOUNDS = ReleaseSpec(max_score_shift=0.5, max_error_rate=0.02)
# A share that is large enough to tell soon; a version that is worse is taken back before its end.
PLAN = PromotionPlan(steps=(50,), watch_seconds=60.0)
# A busy promoter may be late to renew it.
LEASE = ("--lease", "10s")


def put(repository: Path, *, is_shifted: bool = False) -> int:
    """Publishes a version with the bounds, always of the same weights."""
    ranker = publish_ranker(
        repository,
        topology="cpu:1",
        release=BOUNDS,
        change=lambda tower: tower.score.bias.add_(3.0 * is_shifted),
    )
    return ranker.model.artifact.manifest.version


@contextmanager
def keyed_traffic(server: RunningServer, clients: int = 2) -> Iterator[None]:
    """Asks from several clients without end, each time with another key."""
    stop, keys = threading.Event(), count()

    def ask(_: int) -> None:
        with client_of(server) as client:
            while not stop.is_set():
                key = next(keys)
                inputs = triton_inputs(good_inputs(BATCH, key))
                client.infer(MODEL, inputs, parameters={"routing_key": key})

    with in_threads(clients, ask, stop):
        yield


@dataclass(frozen=True)
class Served:
    """A server under load that follows the labels of a repository."""

    repository: Repository
    server: RunningServer

    def stable(self) -> int:
        return self.repository.label_history(MODEL).versions["stable"]

    def publish_canary(self, *, is_shifted: bool = False) -> int:
        version = put(Path(self.repository.location), is_shifted=is_shifted)
        self.repository.set_label(MODEL, "canary", version)
        until(lambda: metric(self.server, "label_version").get("canary") == version, "it is loaded")
        return version

    def all_requests_are_of(self, version: int) -> bool:
        return metric(self.server, "version_share").get(str(version)) == 1.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("promotion")
    place = folder / "models"
    repository = Repository(place)
    repository.set_label(MODEL, "stable", put(place))
    with running_server(place, folder / "log", *FOLLOW) as server, keyed_traffic(server):
        yield Served(repository, server)


def test_a_version_that_is_worse_is_taken_back_by_itself(served: Served) -> None:
    repository, stable = served.repository, served.stable()
    served.publish_canary(is_shifted=True)
    words = "taken back from 50%: .*the mean of score is shifted by"
    with pytest.raises(PromotionError, match=words):
        promote(repository, MODEL, [served.server.metrics_url], PLAN)
    labels = repository.label_history(MODEL)
    assert (labels.versions["stable"], labels.weights) == (stable, {"stable": 100})
    assert labels.ended["canary"][0].reason.startswith("taken back from 50%")
    until(lambda: served.all_requests_are_of(stable), "all requests are stable's")


def test_a_good_version_is_promoted_though_its_promoter_is_killed(
    served: Served, tmp_path: Path
) -> None:
    repository, server, stable = served.repository, served.server, served.stable()
    canary = served.publish_canary()
    words = ("repo", "promote", repository.location, MODEL, "--server", server.metrics_url)
    errors = tmp_path / "promoter"
    with errors.open("w") as stderr:
        watched = ("--steps", "20,50", "--watch", "24s", *LEASE)
        with killed_at_end(start_command(*words, *watched, stderr=stderr)) as promoter:

            def is_half() -> bool:
                assert promoter.poll() is None, errors.read_text()
                return metric(server, "version_share").get(str(canary)) == 0.5

            until(is_half, "the second step")
    # Nobody promotes: the server gives the version back when the lease is over.
    until(lambda: served.all_requests_are_of(stable), "all requests are stable's")
    left = repository.label_history(MODEL).promotion
    assert left is not None and left.step == 1 and left.has_expired(time())
    watch = ("repo", "watch", server.grpc_url, "-r", repository.location, "--timeout", 0)
    assert "step 2 of 2" in run(*watch).stdout
    done = run(*words, "--resume", *LEASE)
    assert done.returncode == 0, done.stderr
    assert "step 2 of 2, 50%" in done.stdout
    assert f"version {canary} is promoted" in done.stdout
    labels = repository.label_history(MODEL)
    assert (labels.versions["stable"], labels.weights) == (canary, {})
    assert "stable" not in labels.ended
    until(lambda: metric(server, "label_version").get("stable") == canary, "stable has moved")
