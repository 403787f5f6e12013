"""Requests that share features are scored by split towers, with the whole tower's scores."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.machine import MAX_INSTRUCTION_SET
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.host_engine import HostEngine
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.split_towers import SplitTowers
from sharded_infer.errors import TowerError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.split_tower import SplitTower
from sharded_infer.towers.tower import Tower
from tests.sharded_infer.towers.split.ranking_towers import DENSE, DIM, DeepFM
from tests.support.batches import run_together

# On the second, tables are split by rows and by columns.
TOPOLOGIES = ("cpu:1", "cpu:5x4KB")
POOLINGS = ("sum", "mean", "sum", "sum", "mean", "sum")
BOUNDS = {Precision.FP32: 2e-6, Precision.BF16: 4e-3}
USER = (1, 3, 4)
EVERYTHING = tuple(range(len(POOLINGS)))


def spec_of(precision: Precision) -> ModelSpec:
    tables = tuple(
        TableSpec(f"t{number}", rows=60, dim=DIM, pooling=pooling)
        for number, pooling in enumerate(POOLINGS)
    )
    return ModelSpec(
        "ranker", tables, dense=DenseSpec({"dense": DENSE}), tower=TowerSpec(precision=precision)
    )


@pytest.fixture(scope="module", params=BOUNDS)
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = spec_of(request.param)
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: 0.2 * torch.randn(t.rows, t.dim, generator=generator) for t in spec.tables}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        tower = DeepFM().eval()
    folder = tmp_path_factory.mktemp("ranker")
    return publish(spec, weights, tower, folder, topologies=TOPOLOGIES).path


@pytest.fixture(scope="module", params=TOPOLOGIES)
def model(request: pytest.FixtureRequest, version: Path) -> Model:
    return open_model(version, topology=request.param)


def request_of(
    pairs: int, shared: Sequence[int], *, seed: int, weighted: bool = False, largest: int = 4
) -> ModelInput:
    """A request with its ids checked, and bags of 0 to `largest` ids."""
    generator = np.random.default_rng(seed)
    own = [feature for feature in range(len(POOLINGS)) if feature not in shared or pairs == 1]
    groups = []
    for features, bags in ((own, pairs), (list(shared) if pairs > 1 else [], 1)):
        if features:
            lengths = generator.integers(0, largest + 1, (len(features), bags))
            ids = generator.integers(0, 60, int(lengths.sum()))
            weights = generator.standard_normal(len(ids), dtype=np.float32) if weighted else None
            groups.append(JaggedBatch(tuple(features), ids, lengths, weights))
    dense = generator.standard_normal((pairs, DENSE), dtype=np.float32)
    return ModelInput(pairs, tuple(groups), (dense,), ids_checked=True)


def expanded(request: ModelInput) -> ModelInput:
    """The same request with shared values repeated for each pair."""
    bags: dict[int, list[tuple[NDArray[np.int64], NDArray[np.float32] | None]]] = {}
    for group in request.groups:
        ends = np.cumsum(group.lengths.ravel()).reshape(group.lengths.shape)
        for feature, lengths, lasts in zip(group.features, group.lengths, ends, strict=True):
            found = []
            for length, last in zip(lengths.tolist(), lasts.tolist(), strict=True):
                part = slice(last - length, last)
                scales = None if group.weights is None else group.weights[part]
                found.append((group.values[part], scales))
            bags[feature] = found * (request.batch_size // len(found))
    every = [bag for feature in sorted(bags) for bag in bags[feature]]
    weighted = any(scales is not None for _, scales in every)
    group = JaggedBatch(
        tuple(sorted(bags)),
        np.concatenate([ids for ids, _ in every]),
        np.array([len(ids) for ids, _ in every]).reshape(len(bags), request.batch_size),
        np.concatenate([s for _, s in every if s is not None]) if weighted else None,
    )
    return ModelInput(request.batch_size, (group,), request.dense, ids_checked=True)


def splits_of(model: Model, shared: Sequence[int]) -> SplitTower:
    assert isinstance(model.engine, HostEngine)
    for seed in range(5):
        run_batch(model, request_of(300, shared, seed=seed))
    found = model.engine._splits.of(tuple(shared))
    assert found is not None
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    run = HostEngine._run_split

    def counted(
        engine: HostEngine,
        split: SplitTower,
        batch: ModelInput,
        requests: int,
        deadline: float,
        *,
        may_default: bool,
    ) -> object:
        seen.append(requests)
        return run(engine, split, batch, requests, deadline, may_default=may_default)

    monkeypatch.setattr(HostEngine, "_run_split", counted)
    return seen


def check_alike(model: Model, requests: Sequence[ModelInput]) -> None:
    """Each request gets the whole tower's scores of its expanded form, but for rounding."""
    bound = BOUNDS[model.spec.tower.precision]
    every: list[NDArray[np.float32]] = []
    for one, result in zip(requests, run_together(model, requests), strict=True):
        expected = run_batch(model, expanded(one))
        assert result.scores[0].shape == (one.batch_size,)
        np.testing.assert_allclose(result.scores[0], expected.scores[0], rtol=0, atol=bound)
        every.append(expected.scores[0])
    assert np.concatenate(every).std() > 4 * bound, "scores that hardly differ prove nothing"


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("pairs", [256, 270, 513])
def test_a_request_said_once_scores_as_said_for_every_pair(
    model: Model, calls: list[int], pairs: int, weighted: bool
) -> None:
    splits_of(model, USER)
    calls.clear()
    check_alike(model, [request_of(pairs, USER, seed=9, weighted=weighted)])
    assert calls == [1]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("shared", [USER, EVERYTHING], ids=["some", "all"])
def test_requests_of_several_users_in_one_batch_get_their_own_scores(
    model: Model, calls: list[int], shared: tuple[int, ...]
) -> None:
    splits_of(model, shared)
    calls.clear()
    sizes = (90, 1, 70, 1, 2, 200)
    check_alike(model, [request_of(size, shared, seed=n) for n, size in enumerate(sizes)])
    assert calls == [len(sizes)]


def test_few_pairs_or_other_features_are_scored_by_the_whole_tower(
    model: Model, calls: list[int]
) -> None:
    splits_of(model, USER)
    calls.clear()
    check_alike(model, [request_of(270, (0, 1), seed=3)])
    first = run_batch(model, request_of(2, USER, seed=3))
    second = run_batch(model, expanded(request_of(2, USER, seed=3)))
    assert not calls and np.array_equal(first.scores[0], second.scores[0])


def test_a_tower_is_split_when_the_same_features_come_again_and_again(version: Path) -> None:
    tower = model_tower(version)
    towers = SplitTowers(tower, [DIM] * 6)
    assert [towers.of(USER) is None for _ in range(6)] == [True] * 4 + [False] * 2
    assert towers.of(USER) is towers.of(USER)


def model_tower(version: Path) -> Tower:
    engine = open_model(version).engine
    assert isinstance(engine, HostEngine)
    return engine._tower


def test_clients_that_always_share_other_features_make_few_towers(version: Path) -> None:
    towers = SplitTowers(model_tower(version), [DIM] * 6)
    sets = [(a, b) for b in range(6) for a in range(b)]
    made = [features for features in sets if [towers.of(features) for _ in range(6)][-1]]
    assert made == sets[:4]


@pytest.mark.parametrize("version", [Precision.FP32], indirect=True)
def test_onednns_kernels_of_split_towers_are_bounded(
    version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_INSTRUCTION_SET, "baseline")
    # The first layer in two parts, each with 0.3 MB or more at 80 sizes, passes 48 MB.
    towers = SplitTowers(model_tower(version), [DIM] * 6, sizes=80)
    sets = [(0, 1, 2), (0, 3), (1,), (4, 5)]
    made = [features for features in sets if [towers.of(features) for _ in range(6)][-1]]
    assert made == sets[:1]


def test_sets_that_come_once_are_counted_up_to_a_bound() -> None:
    asked: list[Sequence[Run]] = []
    towers = SplitTowers(Unsplittable(asked), [1] * 200)  # type: ignore[arg-type]
    for feature in range(200):
        assert towers.of((feature,)) is None
    assert not asked and len(towers._seen) == 64


class Unsplittable:
    def __init__(self, asked: list[Sequence[Run]]) -> None:
        self.asked = asked

    def split(self, runs: Sequence[Run]) -> SplitTower | None:
        self.asked.append(runs)
        raise TowerError("it differs")


def test_a_tower_that_cannot_be_split_is_logged_once_and_stays_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[Sequence[Run]] = []
    towers = SplitTowers(Unsplittable(asked), [4, 2, 3, 1])  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        assert not any(towers.of((0, 3)) for _ in range(10))
    assert asked == [[Run(True, 4), Run(False, 5), Run(True, 1)]]
    assert [record.getMessage() for record in caplog.records] == [
        "what requests share is computed for every pair: it differs"
    ]
