"""Each request of a batch gets its own scores, whatever other requests it has."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer.engines.executor import RequestResult, run_batch
from sharded_infer.engines.model import Model, open_model
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from tests.support.batches import run_together

OUTPUTS = ("click", "rating")
# On the last a table is split by rows.
TOPOLOGIES = ("cpu:1", "cpu:2", "cpu:3x0.55KB")
SIZES = (1, 3, 1, 7, 2, 30, 1)
SHARED = ((), (1, 2), (), (0, 3, 4), (), (), (1, 2, 4))


def request_of(
    spec: ModelSpec,
    batch: int,
    shared: Sequence[int] = (),
    *,
    seed: int = 0,
    weighted: bool = False,
) -> ModelInput:
    """A request whose ids are checked, with some features shared by its samples."""
    generator = np.random.default_rng(seed)
    shared = tuple(shared) if batch > 1 else ()
    own = tuple(f for f in range(len(spec.features)) if f not in shared)
    groups = []
    for features, bags in ((own, batch), (shared, 1)):
        if not features:
            continue
        lengths = generator.integers(0, 5, (len(features), bags))
        values = [
            generator.integers(0, spec.features[f].table.rows, int(n.sum()))
            for f, n in zip(features, lengths, strict=True)
        ]
        ids = np.concatenate(values)
        weights = generator.standard_normal(len(ids), dtype=np.float32) if weighted else None
        groups.append(JaggedBatch(features, ids, lengths, weights))
    dense = [
        generator.standard_normal((1 if shared and i == 0 else batch, width), dtype=np.float32)
        for i, width in enumerate(spec.dense.inputs.values())
    ]
    return ModelInput(batch, tuple(groups), tuple(dense), ids_checked=True, ids_outside=seed % 3)


def requests_of(
    spec: ModelSpec, shared: Sequence[Sequence[int]] = SHARED, *, weighted: bool = False
) -> list[ModelInput]:
    return [
        request_of(spec, size, features, seed=seed, weighted=weighted)
        for seed, (size, features) in enumerate(zip(SIZES, shared, strict=True))
    ]


def differences(together: RequestResult, alone: RequestResult) -> dict[str, float]:
    return {
        name: float(np.abs(some - other).max())
        for name, some, other in zip(OUTPUTS, together.scores, alone.scores, strict=True)
    }


@pytest.fixture(scope="module", params=TOPOLOGIES)
def model(request: pytest.FixtureRequest, published_version: Path) -> Model:
    return open_model(published_version, topology=request.param)


# ---------------------------------------------------------------- embeddings

# ---------------------------------------------------------------- scores


def test_each_request_gets_its_own_scores_in_order(model: Model) -> None:
    requests = requests_of(model.spec)
    executions = run_together(model, requests)
    assert len(executions) == len(requests)
    for one, execution in zip(requests, executions, strict=True):
        assert [score.shape for score in execution.scores] == [
            (one.batch_size,),
            (one.batch_size, 3),
        ]
        assert {score.dtype for score in execution.scores} == {np.dtype(np.float32)}
        assert execution.ids_outside == one.ids_outside
        alone = run_batch(model, one)
        assert max(differences(execution, alone).values()) <= 1e-5
    assert len({(e.lookup_seconds, e.tower_seconds) for e in executions}) == 1
    assert executions[0].lookup_seconds > 0 and executions[0].tower_seconds > 0
    # The wrong request's scores would be further off than any rounding.
    singles = [e.scores[0][0] for e in executions]
    assert min(np.abs(np.subtract.outer(singles, singles))[np.triu_indices(7, 1)]) > 1e-4


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("batch", [1, 2, 16, 17, 19, 65, 257])
def test_padding_comes_back_to_nobody_and_changes_nothing(
    published_version: Path, batch: int
) -> None:
    model = open_model(published_version)
    requests = [request_of(model.spec, 1, seed=seed) for seed in range(batch)]
    executions = run_together(model, requests)
    assert sum(len(e.scores[0]) for e in executions) == batch
    for name, position in (("click", 0), ("rating", 1)):
        got = np.concatenate([execution.scores[position] for execution in executions])
        assert np.isfinite(got).all(), name
        # The tower on exactly these samples, without padding.
        merged = merge_inputs(requests)
        embeddings = model.engine.embeddings(merged)[: merged.batch_size]
        plain = model.score(merged, embeddings)[position].numpy()
        assert got.shape == plain.shape
        np.testing.assert_allclose(got, plain, rtol=0, atol=1e-5)


class Inverse(nn.Module):
    """Infinite and NaN where an embedding is zero, as those of padding are."""

    def forward(self, embeddings: Tensor) -> Tensor:
        return 1.0 / embeddings[:, 0] + embeddings[:, 1] / embeddings[:, 1]


def test_what_a_tower_makes_of_padding_reaches_nobody(tmp_path: Path) -> None:
    spec = ModelSpec("inverse", (TableSpec("one", rows=9, dim=2, format=RowFormat.BF16),))
    samples = ModelInput(
        20, (JaggedBatch((0,), np.arange(20) % 9, np.ones((1, 20), np.int64)),), (), True
    )
    weights = {"one": torch.arange(2.0, 20.0).view(9, 2)}
    model = open_model(publish(spec, weights, Inverse(), tmp_path, samples=samples).path)
    execution = run_batch(model, samples.samples(0, 17))
    wanted = 1.0 / (2.0 + 2 * (np.arange(17) % 9)) + 1.0
    np.testing.assert_allclose(execution.scores[0], wanted, rtol=1e-6)


class Wide(nn.Module):
    """A tower of three layers, wide enough that every instruction set's kernels are used."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 3)
        )

    def forward(self, context: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        scores = self.layers(torch.cat([context, embeddings], dim=1))
        return {"click": (4.0 * scores[:, 0]).sigmoid(), "rating": scores}


# What batch mates may change: rounding.
BOUNDS: dict[Precision, float] = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}


@pytest.mark.parametrize("precision", BOUNDS)
def test_scores_in_a_batch_are_those_alone_but_for_the_towers_rounding(
    tmp_path: Path, precision: Precision
) -> None:
    spec = ModelSpec(
        "wide",
        (TableSpec("user", rows=97, dim=64), TableSpec("item", rows=89, dim=32, pooling="mean")),
        dense=DenseSpec({"context": 16}),
        tower=TowerSpec(outputs=OUTPUTS, precision=precision),
    )
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in spec.tables}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        tower = Wide(16 + spec.embedding_width)
    model = open_model(publish(spec, weights, tower, tmp_path).path)
    clicks: list[NDArray[np.float32]] = []
    for sizes in ([1] * 64, [1, 2, 3, 4, 5, 6, 7, 8], [300, 1, 40], [16, 16], [1, 1]):
        requests = [request_of(spec, size, seed=seed) for seed, size in enumerate(sizes)]
        for one, execution in zip(requests, run_together(model, requests), strict=True):
            alone = run_batch(model, one)
            assert max(differences(execution, alone).values()) <= BOUNDS[precision]
            clicks.append(execution.scores[0])
    spread = float(np.concatenate(clicks).std())
    assert spread > 5 * BOUNDS[precision], "scores that hardly differ would prove nothing"
