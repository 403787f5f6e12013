"""Rows of TorchRec's trackers, on models under DistributedModelParallel."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.change_files import open_changes
from sharded_infer.importing.changes.changed_rows import Changes
from sharded_infer.importing.changes.tracked_changes import changes_of_tracker
from sharded_infer.importing.changes.written_files import write_changes
from tests.support.managed_collisions import mch

pytest.importorskip("torchrec.distributed.model_tracker.model_delta_tracker")

pytestmark = pytest.mark.usefixtures("process_group", "seeded")
ROWS, DIM, RATE = 20, 4, 0.5
TABLES = {"t_user": ["user", "friend"], "t_item": ["item"]}


def distributed(
    collection: nn.Module, tables: nn.Module, sharder: Any, plan: Any, *, as_dtensors: bool = False
) -> Any:
    """The collection, with `tables` in it, under DistributedModelParallel, trained by SGD."""
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv, ShardingPlan
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": RATE})
    return DistributedModelParallel(
        nn.ModuleDict({"part": collection}),
        env=ShardingEnv(
            world_size=torch.distributed.get_world_size(),
            rank=torch.distributed.get_rank(),
            pg=torch.distributed.group.WORLD,
            output_dtensor=as_dtensors,
        ),
        device=torch.device("cpu"),
        plan=ShardingPlan({"part": plan}),
        sharders=[sharder],
    )


def module_plan(module: nn.Module, sharder: Any, **tables: Callable[..., Any]) -> Any:
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan

    size = torch.distributed.get_world_size()
    return construct_module_sharding_plan(
        module, tables, sharder, local_size=size, world_size=size, device_type="cpu"
    )


def model_of(*, pooled: bool = True, t_user: Any = None, **options: Any) -> Any:
    """A collection of pooled features or of sequences, `t_user` by rows and `t_item` whole."""
    import torchrec
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import row_wise, table_wise

    kind = "EmbeddingBag" if pooled else "Embedding"
    configs = [
        getattr(torchrec, f"{kind}Config")(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=features
        )
        for name, features in TABLES.items()
    ]
    collection = getattr(torchrec, f"{kind}Collection")(tables=configs)
    sharder = EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder()
    plan = module_plan(
        collection,
        sharder,
        t_user=t_user or row_wise(compute_kernel="fused"),
        t_item=table_wise(rank=0, compute_kernel="fused"),
    )
    return distributed(collection, collection, sharder, plan, **options)


def tracker_of(model: Any, mode: str = "id_only", **options: Any) -> Any:
    from torchrec.distributed.model_tracker.model_delta_tracker import ModelDeltaTrackerTrec
    from torchrec.distributed.model_tracker.types import TrackingMode

    return ModelDeltaTrackerTrec(model, mode=TrackingMode(mode), **options)


def train(model: Any, ids: dict[str, list[int]], of: Sequence[str] = ("user", "item")) -> None:
    """One batch of one sample; only these features have a loss."""
    from torchrec import KeyedJaggedTensor

    names = [name for features in TABLES.values() for name in features]
    bag = [ids.get(name, []) for name in names]
    jagged = KeyedJaggedTensor(
        keys=names,
        values=torch.tensor([one for those in bag for one in those]),
        lengths=torch.tensor([len(those) for those in bag]),
    )
    found = model.module["part"](jagged).wait()
    numbers = [n if isinstance(n, Tensor) else n.values() for n in (found[name] for name in of)]
    torch.cat([number.flatten() for number in numbers]).sum().backward()


def weights_of_model(model: Any) -> dict[str, Tensor]:
    state = model.state_dict()
    whole: dict[str, Tensor] = {}
    for key, weight in state.items():
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        # A table that all ranks hold is a plain tensor.
        (shard,) = local.local_shards() if hasattr(local, "local_shards") else [local]
        whole[key.split(".")[-2]] = getattr(shard, "tensor", shard).detach().clone()
    return whole


def assert_rows(
    changes: Changes, expected: dict[str, list[int]], weights: dict[str, Tensor]
) -> None:
    assert {table: sorted(changed.ids.tolist()) for table, changed in changes.items()} == expected
    for table, changed in changes.items():
        assert changed.values is not None
        assert changed.values.equal(weights[table][torch.from_numpy(changed.ids)])


@pytest.mark.parametrize("as_dtensors", [False, True])
def test_rows_that_were_looked_up_come_as_they_are_now(as_dtensors: bool, tmp_path: Path) -> None:
    model = model_of(as_dtensors=as_dtensors)
    tracker, before = tracker_of(model), weights_of_model(model)
    train(model, {"user": [3, 3, 19], "item": [0]})
    train(model, {"user": [3], "friend": [7], "item": [5]}, of=["user", "friend", "item"])
    changes, after = changes_of_tracker(tracker), weights_of_model(model)
    assert_rows(changes, {"t_user": [3, 7, 19], "t_item": [0, 5]}, after)
    differing = [(before[t] != after[t]).any(1).nonzero().flatten().tolist() for t in TABLES]
    assert differing == [[3, 7, 19], [0, 5]]
    write_changes(changes, tmp_path / "rank_0.safetensors")
    assert_rows(open_changes(tmp_path), {"t_user": [3, 7, 19], "t_item": [0, 5]}, after)


def test_a_table_that_all_ranks_hold_has_its_rows() -> None:
    from torchrec.distributed.sharding_plan import data_parallel

    model = model_of(t_user=data_parallel())
    tracker = tracker_of(model)
    train(model, {"user": [3, 19], "item": [5]})
    expected = {"t_user": [3, 19], "t_item": [5]}
    assert_rows(changes_of_tracker(tracker), expected, weights_of_model(model))


def test_each_row_comes_once_to_each_consumer() -> None:
    model = model_of()
    tracker = tracker_of(model, consumers=["serving", "cache"])
    assert changes_of_tracker(tracker, "serving") == {}
    train(model, {"user": [1], "item": [1]})
    assert_rows(
        changes_of_tracker(tracker, "serving"),
        {"t_user": [1], "t_item": [1]},
        weights_of_model(model),
    )
    train(model, {"user": [2], "item": [3]})
    now = weights_of_model(model)
    assert_rows(changes_of_tracker(tracker, "serving"), {"t_user": [2], "t_item": [3]}, now)
    assert_rows(changes_of_tracker(tracker, "cache"), {"t_user": [1, 2], "t_item": [1, 3]}, now)


@pytest.mark.parametrize("auto_compact", [False, True])
@pytest.mark.parametrize("steps", [True, False])
def test_no_lookup_is_lost_between_two_readings(steps: bool, auto_compact: bool) -> None:
    model = model_of()
    tracker = tracker_of(model, auto_compact=auto_compact)
    for first in range(0, 12, 3):
        for row in range(first, first + 3):
            train(model, {"user": [row], "item": [row, 12]})
            if steps:
                tracker.step()
        rows = [first, first + 1, first + 2]
        expected = {"t_user": rows, "t_item": [*rows, 12]}
        assert_rows(changes_of_tracker(tracker), expected, weights_of_model(model))


def test_rows_that_are_still_the_same_are_left_out_where_the_tracker_knows_them() -> None:
    model = model_of(pooled=False)
    tracker = tracker_of(model, "embedding")
    train(model, {"user": [2, 3], "friend": [3, 9], "item": [4]}, of=["user"])
    train(model, {"user": [3], "friend": [8], "item": [4]}, of=["user"])
    assert_rows(changes_of_tracker(tracker), {"t_user": [2, 3]}, weights_of_model(model))


def one_table(name: str, rows: int, dim: int) -> Any:
    import torchrec

    config = torchrec.EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=dim, feature_names=["user"]
    )
    return torchrec.EmbeddingBagCollection(tables=[config])


def one_of_two_ranks(folder: Path, rank: int) -> None:
    """A process that trains a table cut by rows, and writes its changes."""
    from torchrec import KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import column_wise, row_wise

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/.store", rank=rank, world_size=2
    )
    models, sharder = [], EmbeddingBagCollectionSharder()
    for name, dim, sharding in (
        ("t_user", DIM, row_wise(compute_kernel="fused")),
        ("cut", 8, column_wise(ranks=[0, 1], compute_kernel="fused")),
    ):
        bags = one_table(name, 11, dim)
        plan = module_plan(bags, sharder, **{name: sharding})
        models.append(distributed(bags, bags, sharder, plan))
    by_rows, cut = models
    for weight in by_rows.state_dict().values():
        (shard,) = weight.local_shards()
        first = shard.metadata.shard_offsets[0]
        shard.tensor.copy_(torch.arange(first, first + len(shard.tensor))[:, None])
    tracker = tracker_of(by_rows)
    ids = torch.tensor([1, 5, 6, 10])
    jagged = KeyedJaggedTensor(keys=["user"], values=ids, lengths=torch.tensor([4]))
    by_rows.module["part"](jagged).wait().values().sum().backward()
    write_changes(changes_of_tracker(tracker), folder / f"rank_{rank}.safetensors")
    with pytest.raises(WeightsError, match=r"'cut': is cut .* shard of 8 columns, got \[11, 4\]"):
        changes_of_tracker(tracker_of(cut))
    torch.distributed.barrier()


def test_ranks_have_each_their_own_rows_and_no_columns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=one_of_two_ranks, args=(tmp_path, rank)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    by_rank = [open_changes(tmp_path / f"rank_{rank}.safetensors")["t_user"] for rank in (0, 1)]
    assert [sorted(changed.ids.tolist()) for changed in by_rank] == [[1, 5], [6, 10]]
    both = open_changes(tmp_path)["t_user"]
    assert both.values is not None
    for row, values in zip(both.ids.tolist(), both.values, strict=True):
        # Each row was its number. TorchRec takes the mean of the two ranks' gradients.
        assert values.tolist() == [row - RATE] * DIM


def test_managed_collisions_are_refused() -> None:
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import row_wise
    from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
    from torchrec.modules.mc_modules import ManagedCollisionCollection

    tables = one_table("t_user", ROWS, DIM)
    by_rows = row_wise(compute_kernel="fused")
    plan = module_plan(tables, EmbeddingBagCollectionSharder(), t_user=by_rows)
    managed = ManagedCollisionCollection(
        {"t_user": mch(ROWS, 1000)}, tables.embedding_bag_configs()
    )
    collection = ManagedCollisionEmbeddingBagCollection(tables, managed)
    sharder = ManagedCollisionEmbeddingBagCollectionSharder()
    with pytest.raises(WeightsError, match="'t_user': the tracker has rows that managed collision"):
        changes_of_tracker(tracker_of(distributed(collection, tables, sharder, plan)))


def test_what_is_no_tracker_or_consumer_is_refused() -> None:
    with pytest.raises(WeightsError, match="expected TorchRec's ModelDeltaTracker, got a Linear"):
        changes_of_tracker(nn.Linear(1, 1))
    tracker = tracker_of(model_of(), consumers=["serving"])
    with pytest.raises(WeightsError, match=r"no consumer 'cache', only \['serving'\]"):
        changes_of_tracker(tracker, "cache")
    with pytest.raises(WeightsError, match="no consumer 'default'"):
        changes_of_tracker(tracker)
