"""TorchRec's DLRM-v2, eager, on the CPU, quantized by `quantize_inference_model`."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantizedCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from serving.bench.turns import Parts, timed
from serving.bench.workloads.dlrm_v2 import (
    BOTTOM,
    CROSS_LAYERS,
    CROSS_RANK,
    DENSE_WIDTH,
    DIM,
    IDS_OF_A_BAG,
    TOP,
    ids_of,
)
from serving.bench.workloads.workload import DENSE, Inputs, Workload

_BLOCK = 65_536  # rows written at a time
# Head of FBGEMM's int8 rows: the fp16 scale and bias of numbers between -1/128 and 1/128.
_SCALE_AND_BIAS = np.array([2 / DIM / 255, -1 / DIM], np.float16)


class TorchRecDlrm:
    """DLRM_DCN over int8 tables, its dense parts in fp32 or cast to bf16."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype

    def timed(self, request: Inputs) -> Parts:
        """Time from a ready KeyedJaggedTensor to the scores."""
        dense, ids = torch.from_numpy(request[DENSE]), jagged(request)
        return timed(lambda: self.scores(dense, ids))

    def pooled(self, ids: Any) -> Tensor:
        """Pooled embeddings of a KeyedJaggedTensor of all features, fp32 `[B, 26, 128]`."""
        rows: Tensor = self._model.sparse_arch(ids)
        return rows

    def scores(self, dense: Tensor, ids: Any) -> Tensor:
        """Scores, fp32 `[B]`, of dense fp32 `[B, 13]` and a KeyedJaggedTensor of all features."""
        model = self._model
        if self._dtype is torch.float32:
            logits = model(dense_features=dense, sparse_features=ids)
        else:
            # The steps of DLRM.forward.
            bottom = model.dense_arch(dense.to(self._dtype))
            pooled = self.pooled(ids).to(self._dtype)
            logits = model.over_arch(model.inter_arch(bottom, pooled)).float()
        return torch.sigmoid(logits).squeeze(1)


def build_torchrec_models(workload: Workload) -> tuple[TorchRecDlrm, TorchRecDlrm]:
    """Build the quantized model with dense parts in fp32 and in bf16, over shared random tables."""
    configs = _configs(workload, DataType.FP32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DLRM_DCN(
            # Replaced below: in fp32 the tables may be larger than the memory.
            embedding_bag_collection=EmbeddingBagCollection(configs, device=torch.device("meta")),
            dense_in_features=DENSE_WIDTH,
            dense_arch_layer_sizes=list(BOTTOM),
            over_arch_layer_sizes=list(TOP),
            dcn_num_layers=CROSS_LAYERS,
            dcn_low_rank_dim=CROSS_RANK,
            dense_device=torch.device("cpu"),
        )
    model.sparse_arch.embedding_bag_collection = _quantized(workload)
    model.eval()
    # Both modules share the tables: only the dense parts are copied.
    lowered = copy.copy(model)
    lowered._modules = dict(model._modules)
    for name in ("dense_arch", "inter_arch", "over_arch"):
        setattr(lowered, name, copy.deepcopy(getattr(model, name)).bfloat16())
    return TorchRecDlrm(model, torch.float32), TorchRecDlrm(lowered, torch.bfloat16)


def jagged(request: Inputs) -> Any:
    """A request's ids as a KeyedJaggedTensor, feature-major."""
    pairs = len(request[DENSE])
    return KeyedJaggedTensor(
        keys=[f"C{number}" for number in range(len(IDS_OF_A_BAG))],
        values=torch.from_numpy(np.concatenate([ids.ravel() for ids in ids_of(request)])),
        lengths=torch.tensor(IDS_OF_A_BAG, dtype=torch.int32).repeat_interleave(pairs),
    )


def _configs(workload: Workload, data_type: Any) -> list[Any]:
    return [
        EmbeddingBagConfig(
            name=f"t{number}",
            num_embeddings=rows,
            embedding_dim=DIM,
            feature_names=[f"C{number}"],
            data_type=data_type,
        )
        for number, rows in enumerate(workload.rows)
    ]


def _quantized(workload: Workload) -> Any:
    # The flags that quantize_inference_model sets.
    collection = QuantizedCollection(
        _configs(workload, DataType.INT8),
        is_weighted=False,
        device=torch.device("cpu"),
        register_tbes=True,
        cache_features_order=True,
    )
    generator = torch.Generator().manual_seed(0)
    block: Tensor | None = None
    for bags in collection.embedding_bags.values():
        rows = bags.weight  # uint8 [rows, bytes], in the collection's own memory
        if block is None:
            shape = (_BLOCK, rows.shape[1])
            block = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            block[:, : _SCALE_AND_BIAS.nbytes] = torch.from_numpy(_SCALE_AND_BIAS.view(np.uint8))
        for start in range(0, len(rows), _BLOCK):
            part = rows[start : start + _BLOCK]
            part.copy_(block[: len(part)])
    return collection
