"""TorchRec's quantized EmbeddingCollection and our sequences: rows equal to the bit."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.model import Model, open_model
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.layout import SequenceLayout
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, QuantizationSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.lookups.test_random_plans import random_plan
from tests.support.raw_cluster import replace_plan
from tests.support.torchrec_models import Table, TorchRec, torchrec

# TorchRec wants one dim for all tables of a collection. Several features share a table.
WIDE = (
    Table("t_item", 60, 32, ("history", "cart")),
    Table("t_shop", 17, 32, ("shops",)),
    Table("t_one", 1, 32, ("one",)),
)
ODD = (Table("t_item", 31, 6, ("history", "cart")), Table("t_ad", 9, 6, ("ads",)))
SAMPLES = 40


class Sums(nn.Module):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, **inputs: Tensor) -> Tensor:
        sums = [inputs[name].mean((1, 2)) for name in self.names]
        return torch.stack(sums).sum(0)


@pytest.fixture
def rec() -> Iterator[TorchRec]:
    with torchrec() as parts:
        yield parts


def collection(rec: TorchRec, tables: Sequence[Table]) -> nn.Module:
    configs = [
        rec.configs.EmbeddingConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.dim,
            feature_names=list(table.features),
        )
        for table in tables
    ]
    made: nn.Module = rec.embeddings.EmbeddingCollection(tables=configs)
    for weight in made.parameters():
        nn.init.normal_(weight)
    return made


def spec_of(tables: Sequence[Table], row_format: RowFormat, **settings: Any) -> ModelSpec:
    names = [feature for table in tables for feature in table.features]
    return ModelSpec(
        "sequences",
        tuple(TableSpec(t.name, t.rows, t.dim, features=t.features) for t in tables),
        quantization=QuantizationSpec(format=row_format, clip=False),
        gate=GateSpec(max_score_diff=100),
        sequences={
            name: SequenceSpec(features=(name,), **{"max_length": 12, **settings}) for name in names
        },
    )


def batch_of(tables: Sequence[Table], seed: int = 0) -> JaggedBatch:
    """Sequences of 0 to 12 ids; the first are empty, some ids repeat."""
    generator = np.random.default_rng(seed)
    rows = [table.rows for table in tables for _ in table.features]
    lengths = generator.integers(0, 13, (len(rows), SAMPLES))
    lengths[:, 0], lengths[:, 1] = 0, 12
    values = [
        generator.integers(0, high, int(counts.sum()))
        for high, counts in zip(rows, lengths, strict=True)
    ]
    values[0][:4] = values[0][0]
    return JaggedBatch(tuple(range(len(rows))), np.concatenate(values), lengths)


def theirs(rec: TorchRec, module: Any, tables: Sequence[Table], batch: JaggedBatch) -> list[Tensor]:
    """Rows of each feature's ids, fp32 `[N, dim]`."""
    names = [feature for table in tables for feature in table.features]
    ids = rec.sparse.KeyedJaggedTensor(
        keys=names,
        values=torch.from_numpy(batch.values),
        lengths=torch.from_numpy(batch.lengths.ravel()),
    )
    with torch.no_grad():
        found = module(ids)
    return [found[name].values().float() for name in names]


def ours(model: Model, batch: JaggedBatch) -> list[Tensor]:
    """Padded rows of each sequence, `[B, L, dim]`."""
    model_input = ModelInput(SAMPLES, (batch,), ())
    flat = model.engine.embeddings(model_input)[:SAMPLES]
    laid_out = SequenceLayout(model.spec).lay_out(model_input)
    widths = [
        one.padded_length * taken.width
        for one, taken in zip(laid_out, model.spec.tower_sequences.values(), strict=True)
    ]
    return [
        part.reshape(SAMPLES, one.padded_length, -1)
        for part, one in zip(torch.split(flat, widths, dim=1), laid_out, strict=True)
    ]


def assert_same_bits(left: Tensor, right: Tensor) -> None:
    assert left.dtype == right.dtype == torch.float32
    assert torch.equal(left.contiguous().view(torch.int32), right.contiguous().view(torch.int32))


def assert_same_rows(
    expected: Sequence[Tensor], found: Sequence[Tensor], batch: JaggedBatch
) -> None:
    for rows, padded, lengths in zip(expected, found, batch.lengths, strict=True):
        for sample, length in enumerate(lengths.tolist()):
            end = int(lengths[: sample + 1].sum())
            assert_same_bits(padded[sample, :length], rows[end - length : end])
            assert not padded[sample, length:].any()


@pytest.mark.parametrize("topology", ["cpu:1", "cpu:3"])
@pytest.mark.parametrize("tables", [WIDE, ODD], ids=["wide", "odd"])
@pytest.mark.parametrize(
    ("dtype", "row_format"),
    [(torch.int8, RowFormat.INT8), (torch.float16, RowFormat.FP16)],
    ids=["int8", "fp16"],
)
def test_rows_have_torchrecs_bits(
    dtype: torch.dtype,
    row_format: RowFormat,
    tables: Sequence[Table],
    topology: str,
    rec: TorchRec,
    tmp_path: Path,
) -> None:
    module, batch = collection(rec, tables), batch_of(tables)
    spec = spec_of(tables, row_format)
    weights = {t.name: module.embeddings[t.name].weight.detach().clone() for t in tables}
    published = publish(spec, weights, Sums(list(spec.sequences)), tmp_path, topologies=[topology])
    quantized = rec.quantized(nn.Sequential(module), dtype)[0]
    expected = theirs(rec, quantized, tables, batch)
    assert_same_rows(expected, ours(open_model(published.path), batch), batch)


@pytest.mark.parametrize("kind", ["rows", "grid"])
def test_rows_that_are_cut_have_torchrecs_bits(kind: str, rec: TorchRec, tmp_path: Path) -> None:
    module, batch = collection(rec, WIDE), batch_of(WIDE, seed=2)
    spec = spec_of(WIDE, RowFormat.INT8)
    weights = {t.name: module.embeddings[t.name].weight.detach().clone() for t in WIDE}
    tower = Sums(list(spec.sequences))
    path = publish(spec, weights, tower, tmp_path, topologies=["cpu:4"]).path
    tables = open_artifact(path).manifest.stored_tables()
    plan = random_plan(np.random.default_rng(0), 2, kinds=(kind,), tables=tables, name="cpu:4")
    replace_plan(path, plan)
    expected = theirs(rec, rec.quantized(nn.Sequential(module))[0], WIDE, batch)
    assert_same_rows(expected, ours(open_model(path), batch), batch)


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("pad", ["left", "right"])
def test_a_longer_sequence_keeps_the_bits_of_one_side(
    keep: str, pad: str, rec: TorchRec, tmp_path: Path
) -> None:
    module, batch = collection(rec, WIDE), batch_of(WIDE, seed=1)
    spec = spec_of(WIDE, RowFormat.INT8, max_length=5, keep=keep, pad=pad, pad_to="max_length")
    weights = {t.name: module.embeddings[t.name].weight.detach().clone() for t in WIDE}
    published = publish(spec, weights, Sums(list(spec.sequences)), tmp_path)
    expected = theirs(rec, rec.quantized(nn.Sequential(module))[0], WIDE, batch)
    found = ours(open_model(published.path), batch)
    for rows, padded, lengths in zip(expected, found, batch.lengths, strict=True):
        for sample, length in enumerate(lengths.tolist()):
            end, kept = int(lengths[: sample + 1].sum()), min(5, length)
            first = end - kept if keep == "last" else end - length
            place = slice(5 - kept, 5) if pad == "left" else slice(0, kept)
            assert_same_bits(padded[sample, place], rows[first : first + kept])
