"""Import of TorchRec's DLRM and DLRM_DCN from memory: spec, weights and our tower.

TorchRec is not imported: its modules are recognised by their attributes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from quant.sources.checkpoint import LiveSource
from quant.sources.weight_source import WeightSource
from sharded_infer.errors import SpecError, WeightsError
from sharded_infer.importing.torchrec_names import torchrec_keys
from sharded_infer.importing.tower_sizes import TowerSizes, torchrec_sizes
from sharded_infer.importing.tower_source import load_tower
from sharded_infer.importing.trained_tables import PROCESSORS, STORED_FORMATS
from sharded_infer.specs.model_spec import ModelSpec, TowerSpec
from sharded_infer.specs.spec_file import parse_spec

DENSE = "dense"
_PARTS = ("sparse_arch", "dense_arch", "inter_arch", "over_arch")
# DistributedModelParallel, DistributedDataParallel, and DLRMTrain.
_WRAPPED = ("_dmp_wrapped_module", "module", "model")
_POOLINGS = {"SUM": "sum", "MEAN": "mean"}


def from_torchrec(
    model: nn.Module, name: str = "torchrec"
) -> tuple[ModelSpec, WeightSource, nn.Module]:
    """Import a TorchRec DLRM or DLRM_DCN.

    Args:
        model: with embeddings trained or quantized by TorchRec. It may be wrapped in `DLRMTrain`,
            `DistributedDataParallel`, or a `DistributedModelParallel` whose tables are whole in
            this process.
        name: the model's name in repositories and on the wire.

    Returns:
        The spec, the weights and our tower, as `publish` takes them. The spec has TorchRec's order
            of tables and features, and the formats of quantized tables. The weights are read in
            place, quantized rows unchanged. The tower's scores are the sigmoid of the model's
            logits.

    Raises:
        SpecError: another kind of model, or feature processors, pruned tables or another
            interaction.
        WeightsError: a parameter is missing or misshapen, or a table is spread over processes.
    """
    inner = _unwrap(model)
    configs = _configs(inner)
    weights = {key: _whole(key, value) for key, value in inner.state_dict().items()}
    names = [name for config in configs for name in config.feature_names]
    # TorchRec's DLRM cannot select features that several tables pool.
    whole = partial(_scores, inner) if len(set(names)) == len(names) else None
    source = LiveSource(weights, {"": inner}, type(inner).__name__, whole=whole)
    shapes = {n: source.shape(key) for n, key in torchrec_keys(source.keys(), "").items()}
    spec = parse_spec(
        {
            "name": name,
            "tables": [_table(config, weights) for config in configs],
            **_dense_part(torchrec_sizes(shapes)),
        },
        type(inner).__name__,
    )
    return spec, source, load_tower(spec, source, Path())


def _scores(model: nn.Module, dense: Mapping[str, Tensor], features: Any) -> dict[str, Tensor]:
    was_training = model.training
    model.eval()
    try:
        logits: Tensor = model(dense[DENSE].to(features.device()), features)
    finally:
        model.train(was_training)
    return {TowerSpec().outputs[0]: torch.sigmoid(logits.squeeze(1))}


def _unwrap(model: nn.Module) -> nn.Module:
    inner: Any = model
    while not all(hasattr(inner, part) for part in _PARTS):
        wrapped = [getattr(inner, name, None) for name in _WRAPPED]
        inner = next((module for module in wrapped if isinstance(module, nn.Module)), None)
        if inner is None:
            raise SpecError(
                f"expected a TorchRec DLRM or DLRM_DCN, with {', '.join(_PARTS)}, or a module "
                f"that wraps one, got a {type(model).__name__}"
            )
    found: nn.Module = inner
    return found


def _configs(model: nn.Module) -> Sequence[Any]:
    arch: Any = model.sparse_arch
    collection = getattr(arch, "embedding_bag_collection", None)
    if processors := [name for name in PROCESSORS if hasattr(collection, name)]:
        raise SpecError(
            f"{type(collection).__name__} changes features before their lookup "
            f"({processors[0].lstrip('_')}), which a spec cannot describe"
        )
    configs: Any = getattr(collection, "embedding_bag_configs", None)
    # A sharded collection keeps them private.
    configs = configs() if callable(configs) else getattr(collection, "_embedding_bag_configs", ())
    if not configs:
        raise SpecError(
            "sparse_arch: expected an EmbeddingBagCollection with embedding_bag_configs, got a "
            f"{type(collection).__name__}"
        )
    return list(configs)


def _table(config: Any, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    pooling = config.pooling.value
    if pooling not in _POOLINGS:
        raise SpecError(
            f"table {config.name!r}: expected pooling {' or '.join(_POOLINGS)}, got {pooling}"
        )
    kept = getattr(config, "num_embeddings_post_pruning", None)
    if kept not in (None, config.num_embeddings):
        raise SpecError(
            f"table {config.name!r}: pruned to {kept} of {config.num_embeddings} rows, expected "
            "all of them"
        )
    fields = {
        "name": config.name,
        "rows": config.num_embeddings,
        "dim": config.embedding_dim,
        "pooling": _POOLINGS[pooling],
        "features": list(config.feature_names),
    }
    ending = f"embedding_bags.{config.name}.weight"
    key = next((key for key in weights if key.endswith(f".{ending}")), None)
    if key is None:
        raise WeightsError(f"table {config.name!r}: no weight named {ending!r}")
    if weights[key].dtype is torch.uint8:
        fields["format"] = _stored_format(config, key, weights)
    return fields


def _stored_format(config: Any, key: str, weights: Mapping[str, Tensor]) -> RowFormat:
    if f"{key}_qscale" in weights:
        raise WeightsError(
            f"table {config.name!r}: its scales are kept apart from its rows "
            f"({key + '_qscale'!r}), expected rows that begin with them"
        )
    stored = STORED_FORMATS.get(config.data_type.value)
    if stored is None:
        raise SpecError(
            f"table {config.name!r}: expected rows of {', '.join(STORED_FORMATS)}, got "
            f"{config.data_type.value}"
        )
    return stored


def _dense_part(sizes: TowerSizes) -> dict[str, Any]:
    return {
        "dense": {"inputs": {DENSE: sizes.dense_width}},
        "tower": {"architecture": sizes.architecture, **sizes.options},
    }


def _whole(key: str, value: Any) -> Tensor:
    """A parameter as one plain tensor, unwrapped from TorchRec's tensor classes."""
    local = value.to_local() if hasattr(value, "to_local") else value
    if hasattr(local, "local_shards"):
        shards = [getattr(shard, "tensor", shard) for shard in local.local_shards()]
        local = shards[0] if len(shards) == 1 else None
    if local is None or tuple(local.shape) != tuple(value.shape):
        raise WeightsError(
            f"{key!r}: {list(value.shape)}, of which this process holds a part only; save the "
            "model with torch.distributed.checkpoint, and open the directory"
        )
    # Rows of int4 and int2 come in a tensor class that counts elements instead of bytes.
    plain: Tensor = getattr(local, "elem", local)
    return plain
