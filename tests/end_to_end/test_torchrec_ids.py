"""A million known and a million unknown ids: published versions give what TorchRec's modules give.

`pytest -s` prints the figures.
"""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.row_format import RowFormat
from sharded_infer import (
    DenseSpec,
    ModelSpec,
    QuantizationSpec,
    TableSpec,
    id_maps_of,
    open_model,
    publish,
)
from sharded_infer.engines.model import Model
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from tests.support.managed_collisions import (
    MOST,
    RANKS,
    Ids,
    fill,
    jagged_tensor,
    mc_modules,
    mch,
    mch_ranks,
    mpzch,
    random_ids,
    remapped,
    routed,
    sharded,
)
from tests.support.raw_ids import Sum

configs = pytest.importorskip("torchrec.modules.embedding_configs")
collections = pytest.importorskip("torchrec.modules.mc_embedding_modules")
quant = pytest.importorskip("torchrec.quant.embedding_modules")
bags = pytest.importorskip("torchrec.modules.embedding_modules")

# TorchRec's own.
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
MANY, ROWS, DIM, BUCKETS = 10**6, 2**21, 8, 8
SAMPLES = 2**17  # of a request
CPU = torch.device("cpu")
SPEC = ModelSpec(
    "items",
    (TableSpec("item", ROWS, DIM, features=("item_id",), format=RowFormat.INT8),),
    dense=DenseSpec({"age": 1}),
    quantization=QuantizationSpec("fp32"),
)


class Trained(NamedTuple):
    """What training ranks leave.

    Attributes:
        whole: one module for all ids; None: TorchRec has none, only those of the ranks.
    """

    ranks: list[Any]
    whole: Any
    buckets: int


def _trained(kind: str, ranks: int, known: Ids) -> Trained:
    if kind == "mch":
        modules = mch_ranks(ranks, ROWS, known)
        return Trained(modules, modules[0] if ranks == 1 else None, ranks)
    whole = mpzch(ROWS, BUCKETS, disable_fallback=kind == "mpzch without fallback")
    ends = [ROWS // ranks * rank for rank in range(ranks + 1)]
    spans = list(itertools.pairwise(ends))
    modules = [whole.rebuild_with_output_id_range(span).eval() for span in spans]
    for rank, module in enumerate(modules):
        fill(module, known[routed(known, BUCKETS, ranks, 0) == rank])
    states = [module._hash_zch_identities for module in modules]
    whole._hash_zch_identities.data.copy_(torch.cat(states))
    return Trained(modules, whole, BUCKETS)


def _quantized(managed: Any) -> Any:
    """TorchRec's int8 collection over one module of managed collisions."""
    table = configs.EmbeddingBagConfig(
        name="item", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["item_id"]
    )
    generator = torch.Generator().manual_seed(5)
    inner = bags.EmbeddingBagCollection(tables=[table], device=CPU)
    inner.embedding_bags["item"].weight.data.copy_(torch.randn(ROWS, DIM, generator=generator))
    module: Any = collections.ManagedCollisionEmbeddingBagCollection(
        inner, mc_modules.ManagedCollisionCollection({"item": managed}, [table])
    ).eval()
    module.qconfig = torch.quantization.QConfig(
        activation=torch.quantization.PlaceholderObserver.with_args(dtype=torch.float),
        weight=torch.quantization.PlaceholderObserver.with_args(dtype=torch.qint8),
    )
    return quant.QuantManagedCollisionEmbeddingBagCollection.from_float(module)


def _keyed(ids: Ids, lengths: Ids) -> Any:
    return jagged_tensor.KeyedJaggedTensor(
        ["item_id"], torch.from_numpy(ids), lengths=torch.from_numpy(lengths)
    )


def _pooled(collection: Any, ids: Ids, lengths: Ids) -> Tensor:
    with torch.no_grad():
        found = collection(_keyed(ids, lengths))
    pooled: Tensor = (found[0] if isinstance(found, tuple) else found).values()
    return pooled


def _requests(model: Model, ids: Ids, lengths: Ids) -> list[ModelInput]:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    made = []
    for first in range(0, len(lengths), SAMPLES):
        last = min(first + SAMPLES, len(lengths))
        inputs = {
            "item_id": ids[starts[first] : starts[last]],
            "item_id.lengths": lengths[first:last],
            "age": np.zeros((last - first, 1), np.float32),
        }
        made.append(make_input(model.spec, inputs))
    return made


def _rows(model: Model, ids: Ids) -> Ids:
    """The row of each id in a version; -1: it leaves its bag."""
    policy = InputPolicy(model.spec, model.id_maps)
    found = []
    for request in _requests(model, ids, np.ones(len(ids), np.int64)):
        (mapped,) = policy.apply(request).groups
        rows = np.full(request.batch_size, -1)
        rows[mapped.lengths[0] == 1] = mapped.values
        found.append(rows)
    return np.concatenate(found)


def _embeddings(model: Model, ids: Ids, lengths: Ids) -> Tensor:
    found = [
        model.engine.embeddings(request)[: request.batch_size].clone()
        for request in _requests(model, ids, lengths)
    ]
    return torch.cat(found)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kind", ["mch", "mpzch", "mpzch without fallback"])
def test_rows_and_pooled_embeddings_are_those_of_torchrec(
    kind: str, ranks: int, tmp_path: Path
) -> None:
    # The table has room for twice as many: no known id is evicted.
    known, others = random_ids(MANY, 1), random_ids(MANY, 2)
    trained = _trained(kind, ranks, known)
    (source,) = id_maps_of(*trained.ranks).values()
    collection = _quantized(trained.whole if trained.whole is not None else mch(ROWS))
    weights = collection.state_dict()
    path = publish(SPEC, weights, Sum(), tmp_path, id_maps={"item": source}).path
    model = open_model(path)

    ids = np.concatenate([known, others, [0, 1, -1, -(2**63), MOST, MOST - 1]])
    rank_of = routed(ids, trained.buckets, ranks, MOST if kind == "mch" else 0)
    expected = sharded(trained.ranks, ids, rank_of)
    if trained.whole is not None:
        assert np.array_equal(remapped(trained.whole, ids), expected), "TorchRec contradicts itself"
    found = _rows(model, ids)
    differences = int((found != expected).sum())

    order = np.random.default_rng(3).permutation(len(ids))
    lengths = np.ones(len(ids), np.int64)
    if kind != "mpzch without fallback":
        # TorchRec leaves unknown ids out of bags of one id only.
        lengths = np.random.default_rng(4).integers(0, 4, len(ids))
        lengths = lengths[np.cumsum(lengths) <= len(ids)]
        order = order[: lengths.sum()]
    if trained.whole is not None:
        wanted = _pooled(collection, ids[order], lengths)
    else:
        inner = quant.EmbeddingBagCollection
        wanted = inner.forward(collection, _keyed(expected[order], lengths)).values()
    pooled = _embeddings(model, ids[order], lengths)
    bits = int((pooled.view(torch.int32) != wanted.view(torch.int32)).sum())
    print(  # noqa: T201 - what the test is run by hand for
        f"{kind}, {ranks} ranks: {len(known):,} known ids ({source.count:,} in the map), "
        f"{len(others):,} unknown: {differences} rows differ; {wanted.numel():,} pooled numbers of "
        f"{len(lengths):,} bags: {bits} differ"
    )
    assert source.count >= MANY, "every known id is in the map"
    assert not np.isin(others, known).any()
    assert differences == 0 and bits == 0
