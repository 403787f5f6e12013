"""Plans of several ranks on one GPU, their scores beside the host's."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.model import open_model
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, GateSpec, ModelSpec, TableSpec, TowerSpec
from tests.gpu_check.stage import Report, Stage

# Ranks on one GPU, tables split by rows and columns, a rank in pinned memory.
_TOPOLOGIES = ("h100:1", "h100:2", "h100:3x0.7KB", "h100:1x0.7KB+host:1")
_ALLOWED_DIFF = 1e-4
_CLIENTS = 6


def run(stage: Stage) -> Report:
    """Compare plans of several ranks on one GPU (or simulated ones) with the host's scores.

    Returns the largest differences by plan, what was left out, and failures.
    """
    if not stage.has_time():
        return {"max_score_diff": {}, "left_out": list(_TOPOLOGIES), "failures": []}
    differences: dict[str, float] = {}
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        spec, weights, tower = _small_model()
        # With weights in golden requests, batches with weights are captured too.
        golden = _weighted(generate_samples(spec))
        path = publish(
            spec, weights, tower, Path(folder), samples=golden, topologies=_TOPOLOGIES
        ).path
        host = open_model(path)
        for topology in _TOPOLOGIES:
            kinds = [one.kind for one in parse_topology(topology).devices]
            ranks = kinds.count("cuda")
            choice = DeviceChoice((0,) * ranks, stage.is_dry, max_batch=64)
            try:
                model = open_model(path, topology=topology, devices=choice)
                differences[topology] = _largest_difference(model.engine.run, host.engine.run, host)
                if not differences[topology] <= _ALLOWED_DIFF:
                    failures.append(f"plan {topology}: a score is off by {differences[topology]}")
                del model
            except Exception as error:  # the others are checked all the same
                failures.append(f"plan {topology}: {type(error).__name__}: {error}")
    return {"max_score_diff": differences, "failures": failures}


def _small_model() -> tuple[ModelSpec, dict[str, Tensor], nn.Module]:
    spec = ModelSpec(
        name="small",
        tables=(
            TableSpec("ads", 50, 8, features=("shown", "clicked")),
            TableSpec("user", 37, 12, pooling="mean", format=RowFormat.BF16),
            TableSpec("page", 41, 4, pooling="mean", format=RowFormat.INT4, out_of_range="ignore"),
        ),
        dense=DenseSpec({"dense": 5}),
        tower=TowerSpec(outputs=("score",)),
        gate=GateSpec(max_score_diff=1.0),
    )
    generator = torch.Generator().manual_seed(3)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in spec.tables}
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return spec, weights, _SmallTower(5 + spec.embedding_width)


class _SmallTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 16)
        self.score = nn.Linear(16, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden(torch.cat([dense, embeddings], dim=1)))
        score: Tensor = self.score(hidden).squeeze(1)
        return score


def _largest_difference(there: Any, here: Any, host: Any) -> float:
    """Largest difference of scores of batches of many sizes, some with shared bags or weights."""
    batches = [_checked(generate_samples(host.spec, size)) for size in (1, 2, 7, 31, 64, 100)]
    batches += [_shared(batch) for batch in batches if batch.batch_size > 1]
    batches += [_weighted(batch) for batch in batches]
    expected = [here(batch).scores for batch in batches]
    with ThreadPoolExecutor(_CLIENTS) as pool:
        found = [one.scores for one in pool.map(there, batches * 3)]
    return max(
        float(np.abs(some - other).max())
        for mine, theirs in zip(found, expected * 3, strict=True)
        for some, other in zip(mine, theirs, strict=True)
    )


def _checked(batch: ModelInput) -> ModelInput:
    return ModelInput(batch.batch_size, batch.groups, batch.dense, ids_checked=True)


def _shared(batch: ModelInput) -> ModelInput:
    """The batch with the first sample's bags of the last features for all samples."""
    [group] = batch.groups
    count = len(group.features)
    own, shared = group.select(range(count - 2)), group.select((count - 2, count - 1))
    ends = np.cumsum(shared.lengths.sum(axis=1))
    starts = [0, int(ends[0])]
    firsts = shared.lengths[:, :1]
    values = [
        shared.values[start : start + n]
        for start, n in zip(starts, firsts[:, 0].tolist(), strict=True)
    ]
    one = JaggedBatch(shared.features, np.concatenate(values), firsts)
    return ModelInput(batch.batch_size, (own, one), batch.dense, ids_checked=True)


def _weighted(batch: ModelInput) -> ModelInput:
    generator = np.random.default_rng(batch.batch_size)
    groups = tuple(
        JaggedBatch(
            group.features,
            group.values,
            group.lengths,
            generator.standard_normal(len(group.values), np.float32),
        )
        for group in batch.groups
    )
    return ModelInput(batch.batch_size, groups, batch.dense, ids_checked=True)
