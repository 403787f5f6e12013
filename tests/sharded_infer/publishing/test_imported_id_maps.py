"""Versions with imported id maps: embeddings equal those of the original modules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from kernels.row_format import RowFormat
from sharded_infer import (
    DenseSpec,
    IdMapSpec,
    ModelSpec,
    QuantizationSpec,
    TableSpec,
    id_maps_of,
    open_model,
    publish,
)
from sharded_infer.errors import SpecError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.written_id_maps import id_map_sources
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.importing.id_maps.test_torchrec_maps import MPZCH_OPTIONS
from tests.support.managed_collisions import (
    MOST,
    fill,
    jagged_tensor,
    mc_modules,
    mch,
    mpzch,
    random_ids,
    remapped,
    train,
)
from tests.support.raw_ids import Sum

configs = pytest.importorskip("torchrec.modules.embedding_configs")
collections = pytest.importorskip("torchrec.modules.mc_embedding_modules")
quant = pytest.importorskip("torchrec.quant.embedding_modules")
bags = pytest.importorskip("torchrec.modules.embedding_modules")

# TorchRec's own.
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
ROWS, DIM, BATCH = 512, 16, 300
MANAGED = ("users", "ads")
CPU = torch.device("cpu")


def _collection(*, pooled: bool = True) -> Any:
    tables = [
        (configs.EmbeddingBagConfig if pooled else configs.EmbeddingConfig)(
            name=name, embedding_dim=DIM, num_embeddings=ROWS, feature_names=[f"{name}_id"]
        )
        for name in ("users", "ads")
    ]
    inner, outer = bags.EmbeddingCollection, collections.ManagedCollisionEmbeddingCollection
    if pooled:
        inner = bags.EmbeddingBagCollection
        outer = collections.ManagedCollisionEmbeddingBagCollection
    maps = {"users": mch(ROWS), "ads": mpzch(ROWS, 4)}
    train(maps["users"], random_ids(400, 1))
    fill(maps["ads"], random_ids(400, 2))
    managed = mc_modules.ManagedCollisionCollection(maps, tables)
    return outer(inner(tables=tables, device=CPU), managed).eval()


def _quantized(module: Any) -> Any:
    module.qconfig = torch.quantization.QConfig(
        activation=torch.quantization.PlaceholderObserver.with_args(dtype=torch.float),
        weight=torch.quantization.PlaceholderObserver.with_args(dtype=torch.qint8),
    )
    return getattr(quant, f"Quant{type(module).__name__}").from_float(module)


def _spec(stored: RowFormat) -> ModelSpec:
    return ModelSpec(
        "imported",
        tuple(
            TableSpec(name, rows=ROWS, dim=DIM, features=(f"{name}_id",), format=stored)
            for name in ("users", "ads")
        ),
        dense=DenseSpec({"age": 1}),
        quantization=QuantizationSpec("fp32"),
    )


class Histories(nn.Module):
    def forward(
        self, users: Tensor, users_lengths: Tensor, ads: Tensor, ads_lengths: Tensor, age: Tensor
    ) -> Tensor:
        return users.mean((1, 2)) + ads.mean((1, 2)) + age.squeeze(1)


@pytest.mark.parametrize("quantized", [False, True])
def test_sequences_of_managed_collisions_have_their_rows(quantized: bool, tmp_path: Path) -> None:
    module = _collection(pooled=False)
    id_maps = id_maps_of(module)
    module = _quantized(module) if quantized else module
    sequences = {n: SequenceSpec(5, features=(f"{n}_id",), pad_to="max_length") for n in MANAGED}
    stored = RowFormat.INT8 if quantized else RowFormat.FP32
    spec = replace(_spec(stored), sequences=sequences)
    made = publish(spec, module.state_dict(), Histories(), tmp_path, id_maps=id_maps)
    lengths = np.random.default_rng(0).integers(0, 6, (2, BATCH))
    ids = [
        np.random.default_rng(seed).permutation(
            np.concatenate([random_ids(400, seed), random_ids(400, 9)])
        )
        for seed in (1, 2)
    ]
    sent = [some[:count] for some, count in zip(ids, lengths.sum(1), strict=True)]
    given = jagged_tensor.KeyedJaggedTensor(
        keys=[f"{name}_id" for name in MANAGED],
        values=torch.from_numpy(np.concatenate(sent)),
        lengths=torch.from_numpy(lengths.ravel()),
    )
    with torch.no_grad():
        out = module(given)
    out = out[0] if isinstance(out, tuple) else out
    inputs: dict[str, Any] = {"age": np.zeros((BATCH, 1), np.float32)}
    for name, some, counts in zip(MANAGED, sent, lengths, strict=True):
        inputs |= {f"{name}_id": some, f"{name}_id.lengths": counts}
    model = open_model(made.path)
    found = model.engine.embeddings(make_input(model.spec, inputs))[:BATCH]
    for part, name, counts in zip(found.split(5 * DIM, 1), MANAGED, lengths, strict=True):
        rows = part.reshape(BATCH, 5, DIM)
        is_used = torch.arange(5) < torch.from_numpy(counts)[:, None]
        assert torch.equal(rows[is_used], out[f"{name}_id"].values())
        assert not rows[~is_used].any()


def test_a_vocabulary_of_the_spec_is_published_with_its_hash(tmp_path: Path) -> None:
    words = ["", "action", "comedy", "drama"]
    (tmp_path / "genres.txt").write_text("\n".join(words) + "\n")
    strings = IdMapSpec("zero", strings="murmur3_x64_128", seed=5, file="genres.txt")
    weight = torch.rand(4, 3)
    spec = ModelSpec(
        "imported",
        (TableSpec("genres", rows=4, dim=3, id_map=strings),),
        dense=DenseSpec({"age": 1}),
        quantization=QuantizationSpec("fp32"),
    )
    maps = id_map_sources(spec, tmp_path)
    made = publish(spec, {"genres": weight}, Sum(), tmp_path / "models", id_maps=maps)
    model = open_model(made.path)
    assert model.spec.tables[0].id_map == IdMapSpec("zero", strings="murmur3_x64_128", seed=5)
    asked, age = [*words[::-1], "horror"], np.zeros((5, 1), np.float32)
    ids = hash_strings(StringHash.MURMUR3_X64_128, *joined_strings([w.encode() for w in asked]), 5)
    found = model.engine.embeddings(make_input(model.spec, {"genres": ids, "age": age}))[:5]
    wanted = torch.cat([weight.flip(0), torch.zeros(1, 3)])
    assert torch.equal(found, wanted)
    assert np.allclose(model.predict({"genres": asked, "age": age})["score"], wanted.mean(1))


@pytest.mark.parametrize("pooled", [True, False])
def test_collections_with_managed_collisions_are_no_weights(pooled: bool, tmp_path: Path) -> None:
    module = _collection(pooled=pooled)
    spec = ModelSpec("imported", (TableSpec("users", rows=ROWS, dim=DIM),))
    with pytest.raises(SpecError, match="give its state dict, and id_maps=id_maps_of"):
        publish(spec, _quantized(module), Sum(), tmp_path, id_maps=id_maps_of(module))


MPZCH: list[dict[str, Any]] = [
    *MPZCH_OPTIONS,
    {"inference_dispatch_div_train_world_size": True},
    {"inference_dispatch_div_train_world_size": True, "input_hash_size": 10**12 + 7},
]


@pytest.mark.parametrize("options", MPZCH, ids=str)
def test_a_version_reads_its_mpzch_modules_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    rows, size = 2**12, options.get("input_hash_size", 0)
    module = mpzch(rows, 8, **options)
    known, others = random_ids(3000, 1, size or None), random_ids(5000, 2, size or None)
    fill(module, known)
    ids = np.concatenate([known, others, [] if size else [-1, -2, 0, MOST, -(2**63)]])
    ids = ids.astype(np.int64)
    spec = replace(_spec(RowFormat.FP32), tables=(TableSpec("item", rows, 1),))
    # Each row says its number.
    weights = {"item": torch.arange(1.0, rows + 1)[:, None]}
    (source,) = id_maps_of(module).values()
    model = open_model(publish(spec, weights, Sum(), tmp_path, id_maps={"item": source}).path)
    asked = {"item": ids, "age": np.zeros((len(ids), 1), np.float32)}
    found = model.predict(asked)["score"].astype(np.int64) - 1
    assert np.array_equal(found, remapped(module, ids))
    checked = InputPolicy(model.spec, model.id_maps).apply(make_input(model.spec, asked))
    assert checked.ids_unknown[0][1] > 3000
