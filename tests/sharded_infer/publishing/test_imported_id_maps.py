"""Versions with imported id maps: embeddings equal those of the original modules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
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
    open_keyed_tables,
    open_model,
    publish,
)
from sharded_infer.errors import SpecError
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.written_id_maps import id_map_sources
from sharded_infer.specs.sequence_spec import SequenceSpec

Ids = NDArray[np.int64]
mc_modules = pytest.importorskip("torchrec.modules.mc_modules")
hash_modules = pytest.importorskip("torchrec.modules.hash_mc_modules")
jagged_tensor = pytest.importorskip("torchrec.sparse.jagged_tensor")
configs = pytest.importorskip("torchrec.modules.embedding_configs")
collections = pytest.importorskip("torchrec.modules.mc_embedding_modules")
quant = pytest.importorskip("torchrec.quant.embedding_modules")
bags = pytest.importorskip("torchrec.modules.embedding_modules")

# TorchRec's own.
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
ROWS, DIM, BATCH = 512, 16, 300
MANAGED = ("users", "ads")
CPU = torch.device("cpu")


class Sum(nn.Module):
    def forward(self, age: Tensor, embeddings: Tensor) -> Tensor:
        return embeddings.mean(dim=1) + age.squeeze(1)


def _ids(count: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count)


def _mch() -> Any:
    module = mc_modules.MCHManagedCollisionModule(
        zch_size=ROWS,
        device=CPU,
        eviction_policy=mc_modules.DistanceLFU_EvictionPolicy(),
        eviction_interval=1,
    )
    known = torch.from_numpy(_ids(400, 1))
    module.profile({"f": jagged_tensor.JaggedTensor(known, lengths=torch.ones_like(known))})
    return module.eval()


def _mpzch(**options: Any) -> Any:
    module = hash_modules.HashZchManagedCollisionModule(
        zch_size=ROWS, device=CPU, total_num_buckets=4, **options
    ).eval()
    # In the slots where the module searches first, which an empty table shows with its fallback.
    shown = hash_modules.HashZchManagedCollisionModule(
        zch_size=ROWS, device=CPU, total_num_buckets=4
    ).eval()
    known = torch.from_numpy(_ids(400, 2))
    given = {"f": jagged_tensor.JaggedTensor(known, lengths=torch.ones_like(known))}
    slots = shown.remap(given)["f"].values()
    module._hash_zch_identities.data[slots, 0] = known
    return module


def _collection(*, pooled: bool = True, **options: Any) -> Any:
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
    maps = {"users": _mch(), "ads": _mpzch(**options)}
    managed = mc_modules.ManagedCollisionCollection(maps, tables)
    return outer(inner(tables=tables, device=CPU), managed).eval()


def _quantized(module: Any, dtype: torch.dtype = torch.qint8) -> Any:
    module.qconfig = torch.quantization.QConfig(
        activation=torch.quantization.PlaceholderObserver.with_args(dtype=torch.float),
        weight=torch.quantization.PlaceholderObserver.with_args(dtype=dtype),
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


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("disable_fallback", [False, True])
def test_pooled_embeddings_are_those_of_torchrec_to_the_bit(
    quantized: bool, disable_fallback: bool, tmp_path: Path
) -> None:
    module = _collection(disable_fallback=disable_fallback)
    id_maps = id_maps_of(module)
    if quantized:
        module = _quantized(module)
        assert {n: s.count for n, s in id_maps_of(module).items()} == {
            n: s.count for n, s in id_maps.items()
        }
    spec = _spec(RowFormat.INT8 if quantized else RowFormat.FP32)
    path = publish(spec, module.state_dict(), Sum(), tmp_path, id_maps=id_maps).path
    model = open_model(path)
    users, ads = (
        np.random.default_rng(seed).permutation(np.concatenate([_ids(400, seed), _ids(400, 9)]))
        for seed in (1, 2)
    )
    lengths = np.random.default_rng(0).integers(0, 3, BATCH)
    inputs = {
        "users_id": users[: lengths.sum()],
        "users_id.lengths": lengths,
        # TorchRec leaves unknown ids out of bags of one id only.
        "ads_id": ads[:BATCH],
        "age": np.zeros((BATCH, 1), np.float32),
    }
    given = jagged_tensor.KeyedJaggedTensor(
        keys=["users_id", "ads_id"],
        values=torch.from_numpy(np.concatenate([inputs["users_id"], inputs["ads_id"]])),
        lengths=torch.from_numpy(np.concatenate([lengths, np.ones(BATCH, np.int64)])),
    )
    with torch.no_grad():
        pooled = module(given)
    expected = (pooled[0] if isinstance(pooled, tuple) else pooled).to_dict()
    found = model.engine.embeddings(make_input(model.spec, inputs))[:BATCH]
    wanted = torch.cat([expected["users_id"], expected["ads_id"]], dim=1)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("disable_fallback", [False, True])
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.qint8, RowFormat.INT8),
        (torch.quint4x2, RowFormat.INT4),
        (torch.half, RowFormat.FP16),
    ],
    ids=str,
)
def test_embeddings_of_a_quantized_collection_of_sequences_are_equal_to_the_bit(
    dtype: torch.dtype, stored: RowFormat, disable_fallback: bool, tmp_path: Path
) -> None:
    module = _quantized(_collection(pooled=False, disable_fallback=disable_fallback), dtype)
    id_maps = id_maps_of(module)
    path = publish(_spec(stored), module.state_dict(), Sum(), tmp_path, id_maps=id_maps).path
    model = open_model(path)
    ids = {
        "users_id": np.concatenate([_ids(400, 1), _ids(400, 9)]),
        "ads_id": np.concatenate([_ids(400, 2), _ids(400, 9)]),
    }
    given = jagged_tensor.KeyedJaggedTensor(
        keys=list(ids),
        values=torch.from_numpy(np.concatenate(list(ids.values()))),
        lengths=torch.ones(1600, dtype=torch.int64),
    )
    with torch.no_grad():
        out, _ = module(given)
    # It leaves the unknown ids out of its sequences; their bags are zeros here.
    wanted = torch.zeros(800, 2 * DIM)
    for at, name in enumerate(ids):
        kept = out[name].lengths() == 1
        assert kept.any() and bool(kept.all()) != (disable_fallback and name == "ads_id")
        wanted[kept, at * DIM : (at + 1) * DIM] = out[name].values()
    inputs = {**ids, "age": np.zeros((800, 1), np.float32)}
    assert torch.equal(model.engine.embeddings(make_input(model.spec, inputs))[:800], wanted)


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
        np.random.default_rng(seed).permutation(np.concatenate([_ids(400, seed), _ids(400, 9)]))
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


def test_rows_of_dynamicemb_are_those_of_their_ids(tmp_path: Path) -> None:
    ids, values = np.unique(_ids(200, 4)), np.random.default_rng(5).random((200, DIM))
    for rank in range(2):
        ending = f"rank_{rank}.world_size_2"
        (tmp_path / "dump").mkdir(exist_ok=True)
        ids[ids % 2 == rank].tofile(tmp_path / f"dump/users_emb_keys.{ending}")
        values[ids % 2 == rank].astype("f4").tofile(tmp_path / f"dump/users_emb_values.{ending}")
    tables, genres = open_keyed_tables(tmp_path / "dump"), torch.rand(7, 3)
    spec = ModelSpec(
        "imported",
        (
            TableSpec("users", rows=200, dim=DIM, id_map=IdMapSpec("zero")),
            TableSpec("genres", rows=7, dim=3),
        ),
        dense=DenseSpec({"age": 1}),
        quantization=QuantizationSpec("fp32"),
    )
    weights = tables.beside({"genres": genres})
    path = publish(spec, weights, Sum(), tmp_path / "models", id_maps=tables.id_maps).path
    inputs = {
        "users": np.concatenate([ids, [1, 2, 3]]),
        "genres": np.arange(203) % 7,
        "age": np.zeros((203, 1), np.float32),
    }
    model = open_model(path)
    found = model.engine.embeddings(make_input(model.spec, inputs))[:203]
    users = np.concatenate([values.astype("f4"), np.zeros((3, DIM), "f4")])
    wanted = torch.cat([torch.from_numpy(users), genres[torch.arange(203) % 7]], dim=1)
    assert torch.equal(found, wanted)


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
    published = model.spec.tables[0].id_map
    assert published == IdMapSpec("zero", strings="murmur3_x64_128", seed=5)
    asked = [word.encode() for word in [*words[::-1], "horror"]]
    ids = hash_strings(StringHash.MURMUR3_X64_128, *joined_strings(asked), 5)
    inputs = {"genres": ids, "age": np.zeros((5, 1), np.float32)}
    found = model.engine.embeddings(make_input(model.spec, inputs))[:5]
    assert torch.equal(found, torch.cat([weight.flip(0), torch.zeros(1, 3)]))


@pytest.mark.parametrize("pooled", [True, False])
def test_a_collection_with_managed_collisions_is_refused_as_weights(
    pooled: bool, tmp_path: Path
) -> None:
    module = _collection(pooled=pooled)
    spec = ModelSpec("imported", (TableSpec("users", rows=ROWS, dim=DIM),))
    with pytest.raises(SpecError, match="give its state dict, and id_maps=id_maps_of"):
        publish(spec, _quantized(module), Sum(), tmp_path, id_maps=id_maps_of(module))
