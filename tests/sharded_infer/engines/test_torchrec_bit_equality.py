"""TorchRec's tables, published: embeddings and rows of sequences equal TorchRec's to the bit."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from quant.sources.checkpoint import open_weights
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.mapped_tables import table_pieces
from sharded_infer.engines.model import Model, open_model
from sharded_infer.importing.torchrec_model import from_torchrec
from sharded_infer.inputs.sequences.layout import SequenceLayout
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, QuantizationSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.engines.test_padding import Mean
from tests.support.torchrec_models import Batch, Table, TorchRec, make_batch, torchrec

# Several dims, of full and of padded rows; features that share a table; both poolings. TorchRec's
# quantized module takes tables of one pooling before those of the next: they alternate.
# Its operator refuses odd rows, which int2 rows of other dims than multiples of 8 can be.
MIXED = (
    Table("t_user", 50, 16, ("user", "friend")),
    Table("t_item", 31, 24, ("item",), "MEAN"),
    Table("t_ad", 13, 8, ("ad", "last_ad", "next_ad")),
    Table("t_shop", 97, 64, ("shop", "last_shop"), "MEAN"),
    Table("t_flag", 2, 8, ("flag",)),
    Table("t_one", 1, 40, ("one",), "MEAN"),
)
# Rows that are no multiple of anything.
ODD = (Table("t_user", 50, 6, ("user", "friend")), Table("t_item", 31, 22, ("item",), "MEAN"))
# Of sequences, whose tables have one dim.
WIDE = (
    Table("t_item", 60, 32, ("history", "cart")),
    Table("t_shop", 17, 32, ("shops",)),
    Table("t_one", 1, 32, ("one",)),
)


FORMATS = {
    torch.int8: RowFormat.INT8,
    torch.quint4x2: RowFormat.INT4,
    torch.quint2x4: RowFormat.INT2,
    torch.float16: RowFormat.FP16,
}


class SequenceSums(nn.Module):
    def forward(self, **inputs: Tensor) -> Tensor:
        return torch.stack([one.mean((1, 2)) for one in inputs.values() if one.dim() == 3]).sum(0)


@pytest.fixture
def rec() -> Iterator[TorchRec]:
    with torchrec() as parts:
        yield parts


def saved(state: dict[str, Any], folder: Path) -> Path:
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, folder / "model.pt")
    return folder / "model.pt"


def saved_distributed(state: dict[str, Any], folder: Path) -> Path:
    from torch.distributed import checkpoint

    checkpoint.save({"model": state}, checkpoint_id=folder / "model", no_dist=True)
    return folder / "model"


def spec_of(tables: tuple[Table, ...], row_format: RowFormat) -> ModelSpec:
    specs = tuple(
        TableSpec(
            *(t.name, t.rows, t.dim),
            pooling="mean" if t.pooling == "MEAN" else "sum",
            features=t.features,
        )
        for t in tables
    )
    stored = QuantizationSpec(format=row_format, clip=False)
    return ModelSpec("collection", specs, quantization=stored, gate=GateSpec(max_score_diff=10))


def ours(model: Model, batch: Batch) -> Tensor:
    return model.engine.embeddings(batch.model_input)[: batch.model_input.batch_size]


def assert_same_bits(left: Tensor, right: Tensor) -> None:
    assert left.dtype == right.dtype == torch.float32
    assert torch.equal(left.view(torch.int32), right.contiguous().view(torch.int32))


@pytest.mark.parametrize(
    ("dtype", "tables", "save"),
    [
        (torch.int8, MIXED, saved),
        (torch.int8, ODD, saved_distributed),
        (torch.quint4x2, MIXED, saved_distributed),
        (torch.quint2x4, MIXED, saved),
        (torch.float16, MIXED, saved),
    ],
)
def test_tables_of_a_checkpoint_pool_to_torchrecs_bits(
    dtype: torch.dtype,
    tables: tuple[Table, ...],
    save: Callable[[dict[str, Any], Path], Path],
    rec: TorchRec,
    tmp_path: Path,
) -> None:
    collection = rec.collection(tables)
    checkpoint = save(collection.state_dict(), tmp_path)
    batch = make_batch(tables)
    with torch.no_grad():
        pooled = rec.quantized(nn.Sequential(collection), dtype)[0](rec.jagged(batch)).to_dict()
    expected = torch.cat([pooled[feature] for feature in batch.features], dim=1)
    spec = spec_of(tables, FORMATS[dtype])
    published = publish(spec, open_weights(checkpoint), Mean(), tmp_path / "repository")
    assert_same_bits(ours(open_model(published.path), batch), expected)
    assert (batch.lengths == 0).any() and expected.any()


@pytest.mark.parametrize("dtype", [torch.int8, torch.quint4x2])
def test_a_quantized_model_is_published_with_its_bits(
    dtype: torch.dtype, rec: TorchRec, tmp_path: Path
) -> None:
    quantized: Any = rec.quantized(rec.model("DLRM_DCN"), dtype)
    batch = make_batch()
    with torch.no_grad():
        expected = quantized.sparse_arch(rec.jagged(batch)).flatten(1)
        scores = torch.sigmoid(rec.logits(quantized, batch))
    published = publish(*from_torchrec(quantized, "clicks"), tmp_path)
    model = open_model(published.path)
    assert_same_bits(ours(model, batch), expected)
    served = torch.from_numpy(model.run(batch.model_input)["score"])
    torch.testing.assert_close(served, scores, atol=1e-6, rtol=0)
    stored = quantized.state_dict()
    for name, (piece,) in table_pieces(open_artifact(published.path)).items():
        key = f"sparse_arch.embedding_bag_collection.embedding_bags.{name}.weight"
        table = next(table for table in model.spec.tables if table.name == name)
        assert table.format is not None
        rows = stored[key].view(torch.uint8)[:, : table.format.row_bytes(table.dim)]
        bytes_of_rows = rows.reshape(-1)
        start = piece.byte_offset
        assert torch.equal(piece.memory[start : start + len(bytes_of_rows)], bytes_of_rows)


@pytest.mark.parametrize("topology", ["cpu:1", "cpu:3"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16])
def test_rows_of_sequences_have_torchrecs_bits(
    dtype: torch.dtype, topology: str, rec: TorchRec, tmp_path: Path
) -> None:
    configs = [
        rec.configs.EmbeddingConfig(
            name=t.name, num_embeddings=t.rows, embedding_dim=t.dim, feature_names=list(t.features)
        )
        for t in WIDE
    ]
    collection: Any = rec.embeddings.EmbeddingCollection(tables=configs)
    weights = {t.name: collection.embeddings[t.name].weight.detach() for t in WIDE}
    for weight in weights.values():
        nn.init.normal_(weight)
    batch = make_batch(WIDE)
    sequences = {n: SequenceSpec(features=(n,), max_length=6) for n in batch.features}
    spec = replace(spec_of(WIDE, FORMATS[dtype]), sequences=sequences)
    path = publish(spec, weights, SequenceSums(), tmp_path, topologies=[topology]).path
    with torch.no_grad():
        expected = rec.quantized(nn.Sequential(collection), dtype)[0](rec.jagged(batch))
    laid_out = SequenceLayout(spec).lay_out(batch.model_input)
    widths = [one.padded_length * 32 for one in laid_out]
    flat = torch.split(ours(open_model(path), batch), widths, dim=1)
    for name, padded, lengths in zip(batch.features, flat, batch.lengths.tolist(), strict=True):
        rows = expected[name].values().float()
        for sample, length in enumerate(lengths):
            end, places = sum(lengths[: sample + 1]), padded[sample].view(-1, 32)
            assert_same_bits(places[:length].contiguous(), rows[end - length : end])
            assert not places[length:].any()
