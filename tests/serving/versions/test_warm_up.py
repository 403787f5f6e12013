import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest

import serving.versions.warm_up
from serving.errors import DeadlineError
from serving.versions.warm_up import measure_costs, warm_thread
from sharded_infer import open_model
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model
from sharded_infer.errors import ShardedInferError, ShardHostError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.lookups.shard_hosts import Front, PieceBags, StartedLookup
from tests.support.servers import Ranker


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Size and thread of each batch that runs."""
    seen: list[tuple[int, int]] = []

    def run(model: Model, batch: ModelInput) -> object:
        seen.append((batch.batch_size, threading.get_ident()))
        return run_batch(model, batch)

    monkeypatch.setattr(serving.versions.warm_up, "run_batch", run)
    return seen


def test_every_size_runs_and_powers_of_two_are_measured(
    ranker: Ranker, runs: list[tuple[int, int]]
) -> None:
    told: list[tuple[int, int]] = []
    costs = measure_costs(ranker.model, 64, lambda _, done, total: told.append((done, total)))
    sizes = [size for size, _ in runs]
    assert {*sizes} >= {*ranker.model.engine.run_sizes(64)}
    assert {*costs} == {1, 2, 4, 8, 16, 32, 64} and min(costs.values()) > 0
    assert told[-1][0] == told[-1][1]


def test_batches_that_take_long_run_only_twice(
    ranker: Ranker, runs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.versions.warm_up, "_MEASURED_SECONDS", 0.0)
    costs = measure_costs(ranker.model, 64)
    sizes = [size for size, _ in runs]
    # Once for their kernels, once more to see what they cost with them.
    assert [sizes.count(size) for size in costs] == [2] * len(costs)
    assert all(sizes.count(size) == 1 for size in {*sizes} - {*costs})


def test_a_version_of_a_known_tower_runs_a_few_sizes_once(
    ranker: Ranker, runs: list[tuple[int, int]]
) -> None:
    known = {1: 0.5, 64: 1.0, 512: 2.0}
    assert measure_costs(ranker.model, 64, known=known) is known
    assert [size for size, _ in runs] == [1, 16, 256]


@pytest.mark.parametrize("error", [ShardHostError("it is lost"), DeadlineError("it is late")])
def test_a_fronts_thread_begins_also_where_a_shard_host_does_not_answer(
    ranker: Ranker, caplog: pytest.LogCaptureFixture, error: ShardedInferError
) -> None:
    artifact = ranker.model.artifact
    front = Front(_NoHosts(frozenset(range(8)), error))
    warm_thread(open_model(artifact.path, front=front))
    assert caplog.messages == [f"a thread begins before it has scored: {error}"]


@dataclass(frozen=True)
class _NoHosts:
    hosts: frozenset[int]
    error: ShardedInferError
    lost: frozenset[int] = frozenset()

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        raise self.error
