from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import checkpoint

from kernels.row_format import RowFormat
from quant.sources.checkpoint import open_weights
from quant.sources.table_weight import find_weight
from sharded_infer import QuantizationSpec, from_torchrec, open_model, publish
from sharded_infer.errors import SpecError, WeightsError
from sharded_infer.importing.tower_source import load_tower
from sharded_infer.inputs.request_reader import make_input
from tests.support.torchrec_models import DENSE_WIDTH, TABLES, Batch, Table, TorchRec, make_batch

FORMATS = {
    torch.int8: RowFormat.INT8,
    torch.quint4x2: RowFormat.INT4,
    torch.quint2x4: RowFormat.INT2,
    torch.float16: RowFormat.FP16,
    torch.float32: RowFormat.FP32,
}


class Wrapper(nn.Module):
    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)


def pooled_by(model: Any, rec: TorchRec, batch: Batch) -> Tensor:
    """Pooled embeddings as the model's tower takes them, `[B, width]`."""
    with torch.no_grad():
        pooled: Tensor = model.sparse_arch(rec.jagged(batch)).flatten(1)
    return pooled


def assert_same_scores(tower: nn.Module, model: nn.Module, rec: TorchRec) -> Tensor:
    batch = make_batch()
    with torch.no_grad():
        ours = tower(dense=batch.dense, embeddings=pooled_by(model, rec, batch))
    theirs = torch.sigmoid(rec.logits(model, batch))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    return theirs


@pytest.mark.parametrize("architecture", ["DLRM", "DLRM_DCN"])
def test_the_spec_says_what_the_model_is(architecture: str, rec: TorchRec) -> None:
    spec, source, tower = from_torchrec(rec.model(architecture), "clicks")
    assert spec.name == "clicks"
    assert [(t.name, t.rows, t.dim, t.features, t.pooling.upper()) for t in spec.tables] == [
        (t.name, t.rows, t.dim, t.features, t.pooling) for t in TABLES
    ]
    assert {table.format for table in spec.tables} == {None}
    assert spec.dense.inputs == {"dense": DENSE_WIDTH}
    sizes: dict[str, object] = {"bottom": [6, 8], "top": [7, 4, 1]}
    if architecture == "DLRM_DCN":
        sizes |= {"cross_layers": 3, "cross_rank": 2}
    assert spec.tower.options == sizes
    assert source.description == architecture
    assert isinstance(tower, nn.Module)


@pytest.mark.parametrize("wrappers", [("model",), ("module",), ("_dmp_wrapped_module", "module")])
def test_what_wraps_a_model_is_looked_through(wrappers: tuple[str, ...], rec: TorchRec) -> None:
    model = rec.model("DLRM_DCN")
    wrapped = model
    for name in reversed(wrappers):
        wrapped = Wrapper(name, wrapped)
    assert_same_scores(from_torchrec(wrapped)[2], model, rec)
    assert_same_scores(from_torchrec(rec.dlrm.DLRMTrain(model))[2], model, rec)


def test_a_compiled_model_is_taken_over(rec: TorchRec) -> None:
    model = rec.model("DLRM")
    assert_same_scores(from_torchrec(cast(nn.Module, torch.compile(model)))[2], model, rec)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_quantized_tables_are_taken_over_bit_for_bit(dtype: torch.dtype, rec: TorchRec) -> None:
    model = rec.model("DLRM")
    trained = {key: value.clone() for key, value in model.state_dict().items()}
    quantized = rec.quantized(model, dtype)
    spec, source, tower = from_torchrec(quantized)
    assert [table.name for table in spec.tables] == [table.name for table in TABLES]
    assert {table.format for table in spec.tables} == {FORMATS[dtype]}
    stored = quantized.state_dict()
    for table in spec.tables:
        weight = find_weight(
            source, table.name, None, rows=table.rows, dim=table.dim, row_format=table.format
        )
        assert weight.stored is FORMATS[dtype]
        rows = stored[weight.key].view(torch.uint8)[:, : FORMATS[dtype].row_bytes(table.dim)]
        assert torch.equal(weight.read_stored(0, table.rows), rows)
        if not FORMATS[dtype].is_integer:
            expected = trained[weight.key].to(dtype).float()
            assert torch.equal(weight.read(0, table.rows), expected)
    assert_same_scores(tower, quantized, rec)


def test_a_feature_of_two_tables_is_pooled_as_torchrec_does(rec: TorchRec, tmp_path: Path) -> None:
    model = rec.model("DLRM", [Table("a", 5, 8, ("user",)), Table("b", 6, 8, ("item", "user"))])
    spec, source, tower = from_torchrec(model)
    assert spec.sparse_inputs == ("user", "item")
    user, item = np.array([4, 0, 2]), np.array([5, 1, 3])
    ids = torch.from_numpy(np.concatenate([user, item]))
    sent = rec.sparse.KeyedJaggedTensor(["user", "item"], ids, lengths=torch.ones_like(ids))
    # TorchRec's DLRM itself knows such features no more once they are pooled: `user@a`.
    collection = cast(Any, model).sparse_arch.embedding_bag_collection
    pooled = collection(sent)
    assert pooled.keys() == ["user@a", "item", "user@b"]
    fp32 = replace(spec, quantization=QuantizationSpec(RowFormat.FP32))
    served = open_model(publish(fp32, source, tower, tmp_path).path)
    dense = np.zeros((1, DENSE_WIDTH), np.float32)
    asked = make_input(spec, {"dense": dense, "user": user, "item": item})
    torch.testing.assert_close(served.engine.embeddings(asked)[:3], pooled.values().detach())


def test_a_model_that_cannot_be_taken_over_is_refused_with_the_reason(rec: TorchRec) -> None:
    with pytest.raises(WeightsError, match=r"interaction_branch1.*DLRM and DLRM_DCN"):
        from_torchrec(rec.model("DLRM_Projection"))
    pruned: Any = rec.model("DLRM")
    tables = pruned.sparse_arch.embedding_bag_collection.embedding_bag_configs()
    tables[1].num_embeddings_post_pruning = 20
    with pytest.raises((SpecError, WeightsError), match="table 't_item': pruned to 20 of 25 rows"):
        from_torchrec(pruned)
    processing: Any = rec.model("DLRM")
    collection = processing.sparse_arch.embedding_bag_collection
    collection._feature_processors = nn.ModuleDict()
    with pytest.raises((SpecError, WeightsError), match="changes features before their lookup"):
        from_torchrec(processing)


def test_scales_that_are_kept_apart_are_refused(rec: TorchRec) -> None:
    model: Any = rec.model("DLRM")
    collection = model.sparse_arch.embedding_bag_collection
    setattr(collection, "__quant_state_dict_split_scale_bias", True)
    with pytest.raises(WeightsError, match="table 't_user': its scales are kept apart"):
        from_torchrec(rec.quantized(model))


@pytest.mark.parametrize("model", [nn.Linear(2, 2), Wrapper("model", nn.Linear(2, 2))])
def test_anything_else_is_refused_with_its_type(model: nn.Module) -> None:
    with pytest.raises(SpecError, match=f"DLRM or DLRM_DCN.*got a {type(model).__name__}"):
        from_torchrec(model)


def distributed(model: Any, *, as_dtensors: bool) -> nn.Module:
    """The model under DistributedModelParallel, one table whole and the others by rows."""
    from torchrec.distributed import model_parallel, sharding_plan
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    by_rows = sharding_plan.row_wise(compute_kernel="fused")
    whole = sharding_plan.table_wise(rank=0, compute_kernel="fused")
    tables = {table.name: by_rows if table.pooling == "SUM" else whole for table in TABLES}
    bags = model.sparse_arch.embedding_bag_collection
    alone: dict[str, Any] = {"world_size": 1, "device_type": "cpu"}
    plan = sharding_plan.construct_module_sharding_plan(bags, tables, local_size=1, **alone)
    world = torch.distributed.group.WORLD
    parallel: nn.Module = model_parallel.DistributedModelParallel(
        model,
        env=ShardingEnv(world_size=1, rank=0, pg=world, output_dtensor=as_dtensors),
        device=torch.device("cpu"),
        plan=ShardingPlan({"sparse_arch.embedding_bag_collection": plan}),
        sharders=[EmbeddingBagCollectionSharder()],
    )
    return parallel


@pytest.mark.parametrize("as_dtensors", [False, True])
def test_a_distributed_model_of_one_process_is_taken_over(
    as_dtensors: bool, rec: TorchRec, process_group: None, tmp_path: Path
) -> None:
    parallel: Any = distributed(rec.model("DLRM"), as_dtensors=as_dtensors)
    spec, source, tower = from_torchrec(parallel)
    assert [(t.name, t.features, t.pooling.upper()) for t in spec.tables] == [
        (t.name, t.features, t.pooling) for t in TABLES
    ]
    batch = make_batch()
    pooled, start = [], 0
    for feature, lengths in zip(spec.features, batch.lengths, strict=True):
        table, stop = feature.table, start + int(lengths.sum())
        weight = find_weight(source, table.name, None, rows=table.rows, dim=table.dim)
        pooled.append(
            nn.functional.embedding_bag(
                batch.values[start:stop],
                weight.read(0, table.rows),
                torch.cumsum(lengths, 0) - lengths,
                mode=table.pooling,
            )
        )
        start = stop
    theirs = pooled_by(parallel.module, rec, batch)
    torch.testing.assert_close(torch.cat(pooled, dim=1), theirs, atol=1e-6, rtol=0)
    assert_same_scores(tower, parallel.module, rec)
    # Of several processes only this one would call the model, and wait for the others.
    made = publish(spec, source, tower, tmp_path / "models")
    assert made.report.imported is None and "import not compared" in made.compared


@pytest.mark.parametrize("as_dtensors", [False, True])
def test_the_checkpoint_of_a_distributed_model_is_read(
    as_dtensors: bool, rec: TorchRec, process_group: None, tmp_path: Path
) -> None:
    parallel: Any = distributed(rec.model("DLRM_DCN"), as_dtensors=as_dtensors)
    checkpoint.save({"model": parallel.state_dict()}, checkpoint_id=tmp_path / "saved")
    spec, memory, _ = from_torchrec(parallel)
    source = open_weights(tmp_path / "saved")
    for table in spec.tables:
        saved, kept = (
            find_weight(weights, table.name, None, rows=table.rows, dim=table.dim)
            for weights in (source, memory)
        )
        assert torch.equal(saved.read(0, table.rows), kept.read(0, table.rows))
    assert_same_scores(load_tower(spec, source, tmp_path), parallel.module, rec)
