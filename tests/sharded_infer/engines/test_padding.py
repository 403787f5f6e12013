"""Padding is left out of its bags: every lookup equals `nn.EmbeddingBag`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels.bags import Bags
from quant.sources.table_weight import find_weight
from quant.sources.weight_source import TensorSource
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.model import Model, open_model
from sharded_infer.inputs.id_policy import IdPolicy, InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.publication import publish
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model
from sharded_infer.specs.model_spec import FeatureSpec, ModelSpec, QuantizationSpec, TableSpec

BATCH = 7
SPEC = ModelSpec(
    "padded",
    (
        TableSpec("genre", rows=9, dim=4, pooling="mean", padding_idx=0),
        TableSpec("item", rows=13, dim=3, features=("clicked", "bought"), padding_idx=12),
        TableSpec("user", rows=6, dim=5),
        TableSpec("tag", rows=5, dim=2, pooling="mean", padding_idx=2, out_of_range="ignore"),
    ),
    quantization=QuantizationSpec("fp32"),
)
# 784 bytes of rows: on the last topology tables are split by rows and columns.
TOPOLOGIES = ("cpu:1", "cpu:2", "cpu:6x0.15KB")
ON_DEVICES = dict(zip(TOPOLOGIES, ("h100:1", "h100:2", "h100:3x0.4KB"), strict=True))


class Mean(nn.Module):
    def forward(self, *, embeddings: Tensor) -> Tensor:
        return embeddings.mean(dim=1)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """No row is zero, not even the padding's: training may have moved it."""
    generator = torch.Generator().manual_seed(3)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in SPEC.tables}


@pytest.fixture(scope="module")
def version(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("padded")
    return publish(
        SPEC, weights, Mean(), folder, topologies=(*TOPOLOGIES, *ON_DEVICES.values())
    ).path


def random_group(
    seed: int, features: tuple[int, ...], bags: int, *, weighted: bool = False
) -> JaggedBatch:
    """Ids of which about a third are padding; bags of nothing else, and of nothing, occur."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 5, (len(features), bags))
    values = []
    for feature, counts in zip(features, lengths, strict=True):
        table = SPEC.features[feature].table
        ids = generator.integers(0, table.rows, int(counts.sum()))
        padding = table.rows - 1 if table.padding_idx is None else table.padding_idx
        values.append(np.where(generator.random(ids.size) < 0.3, padding, ids))
    joined = np.concatenate(values)
    scales = generator.normal(size=joined.size).astype(np.float32) if weighted else None
    return JaggedBatch(features, joined, lengths, scales)


def pooled_by_torch(weights: dict[str, Tensor], group: JaggedBatch) -> dict[int, Tensor]:
    """Every feature's bags by torch's own module, by the feature's position."""
    found, start = {}, 0
    for feature, counts in zip(group.features, group.lengths, strict=True):
        table = SPEC.features[feature].table
        part = slice(start, start := start + int(counts.sum()))
        lengths = torch.from_numpy(counts)
        ids = torch.from_numpy(group.values[part])
        module = nn.EmbeddingBag.from_pretrained(
            weights[table.name],
            # Torch knows no weighted means: those are weighted sums over the number of ids.
            mode="sum" if group.weights is not None else table.pooling or "sum",
            padding_idx=table.padding_idx,
        )
        scales = None if group.weights is None else torch.from_numpy(group.weights[part])
        pooled = module(ids, torch.cumsum(lengths, 0) - lengths, per_sample_weights=scales)
        if group.weights is not None and table.pooling == "mean":
            owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
            counted = torch.bincount(owners[ids != table.padding_idx], minlength=len(lengths))
            pooled = pooled / counted.clamp(min=1)[:, None]
        found[feature] = pooled
    return found


def embeddings(model: Model, model_input: ModelInput) -> Tensor:
    return model.engine.embeddings(model_input)[: model_input.batch_size]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("backend", ["native", "fbgemm", "devices"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_plan_and_backend_gives_what_torch_gives(
    version: Path, weights: dict[str, Tensor], topology: str, backend: str, weighted: bool
) -> None:
    if topology == TOPOLOGIES[-1]:
        shards = open_artifact(version).plan(topology).shards
        whole = {t.name: t.rows for t in SPEC.tables}
        assert any(s.last_row - s.first_row < whole[s.table] for s in shards)
    if backend == "devices":
        devices = DeviceChoice(simulated=True, max_batch=8)
        model = open_model(version, topology=ON_DEVICES[topology], devices=devices)
    else:
        model = open_model(version, topology=topology, backend=backend)
    features = tuple(range(len(SPEC.features)))
    for seed in range(6):
        group = random_group(seed, features, BATCH, weighted=weighted)
        wanted = torch.cat([*pooled_by_torch(weights, group).values()], dim=1)
        asked = ModelInput(BATCH, (group,), ())
        torch.testing.assert_close(embeddings(model, asked), wanted)
        torch.testing.assert_close(embeddings(model, InputPolicy(SPEC).apply(asked)), wanted)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_fp32_model_has_none_either(weights: dict[str, Tensor], weighted: bool) -> None:
    source = TensorSource(weights)
    found = {t.name: find_weight(source, t.name, None, rows=t.rows, dim=t.dim) for t in SPEC.tables}
    model = Fp32Model(SPEC, found, Mean())
    group = random_group(1, tuple(range(len(SPEC.features))), BATCH, weighted=weighted)
    (pooled,) = model.pooled(ModelInput(BATCH, (group,), ()), [TRAINED])
    torch.testing.assert_close(
        pooled, torch.cat([*pooled_by_torch(weights, group).values()], dim=1)
    )


def test_rows_of_padding_are_not_counted_as_read_nor_as_outside(version: Path) -> None:
    model = open_model(version)
    lengths = np.ones((5, 3), np.int64)
    ids = np.array([[0, 0, 1], [12, 3, 12], [12, 12, 12], [0, 0, 0], [2, 9, 2]])
    ran = model.engine.run(ModelInput(3, (JaggedBatch(tuple(range(5)), ids.ravel(), lengths),), ()))
    assert ran.ids_outside == 1  # the 9
    assert sum(rows for _, rows, _, _ in ran.work.steps) == 5


@given(
    ids=st.lists(st.integers(-12, 12), max_size=20),
    rows=st.integers(1, 6),
    padding=st.integers(0, 5),
    out_of_range=st.sampled_from(["ignore", "modulo"]),
    weighted=st.booleans(),
)
def test_padding_is_judged_after_ids_outside_are(
    ids: list[int], rows: int, padding: int, out_of_range: str, weighted: bool
) -> None:
    padding %= rows
    table = TableSpec("t", rows=rows, dim=1, out_of_range=out_of_range, padding_idx=padding)
    kept = [i % rows if out_of_range == "modulo" else i for i in ids]
    left = [n for n, i in enumerate(kept) if 0 <= i < rows and i != padding]
    scales = torch.arange(float(len(ids))) if weighted else None
    bags = Bags(torch.tensor(ids, dtype=torch.int64), torch.tensor([[len(ids)]]), scales)
    checked, outside = IdPolicy([FeatureSpec("t", table)]).apply(bags)
    assert outside == sum(not 0 <= i < rows for i in ids)
    assert checked.values.tolist() == [kept[n] for n in left]
    assert checked.lengths.tolist() == [[len(left)]]
    if checked.weights is not None:
        assert checked.weights.tolist() == left
