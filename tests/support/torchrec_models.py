"""TorchRec models with random weights, for tests of their import."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer.inputs.model_input import JaggedBatch, ModelInput

DENSE_WIDTH = 5
REASON = "TorchRec is not installed; see the bench extra"


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: str = "SUM"


TABLES = (
    Table("t_user", 40, 8, ("user", "friend")),
    Table("t_item", 25, 8, ("item",), "MEAN"),
    Table("t_ad", 13, 8, ("ad", "last_ad", "next_ad")),
)


@dataclass(frozen=True, slots=True)
class TorchRec:
    dlrm: Any
    embeddings: Any
    configs: Any
    inference: Any
    sparse: Any

    def collection(self, tables: Sequence[Table] = TABLES) -> nn.Module:
        configs = [
            self.configs.EmbeddingBagConfig(
                name=table.name,
                num_embeddings=table.rows,
                embedding_dim=table.dim,
                feature_names=list(table.features),
                pooling=self.configs.PoolingType(table.pooling),
            )
            for table in tables
        ]
        collection: nn.Module = self.embeddings.EmbeddingBagCollection(tables=configs)
        for weight in collection.parameters():
            nn.init.normal_(weight)
        return collection

    def model(self, architecture: str, tables: Sequence[Table] = TABLES) -> nn.Module:
        """A model with one of TorchRec's towers; all parameters random, biases too."""
        dim = tables[0].dim
        arguments = (self.collection(tables), DENSE_WIDTH, [6, dim], [7, 4, 1])
        build: Callable[..., nn.Module] = getattr(self.dlrm, architecture)
        extra = {"DLRM": (), "DLRM_DCN": (3, 2), "DLRM_Projection": ([dim], [dim])}
        model = build(*arguments, *extra[architecture])
        for name, parameter in model.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter)
        return model.eval()

    def quantized(self, model: nn.Module, dtype: torch.dtype = torch.int8) -> nn.Module:
        quantized: nn.Module = self.inference.quantize_inference_model(
            model, quantization_dtype=dtype
        )
        return quantized

    def logits(self, model: nn.Module, batch: "Batch") -> Tensor:
        with torch.no_grad():
            logits: Tensor = model(batch.dense, self.jagged(batch))
        return logits.squeeze(1)

    def jagged(self, batch: "Batch") -> Any:
        """The batch's ids for TorchRec, in the order of the tables' features."""
        return self.sparse.KeyedJaggedTensor(
            keys=list(batch.features), values=batch.values, lengths=batch.lengths.flatten()
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A jagged batch: int64 `[N]`, feature-major, lengths `[F, B]`, fp32 `[B, DENSE_WIDTH]`."""

    features: tuple[str, ...]
    values: Tensor
    lengths: Tensor
    dense: Tensor

    @property
    def model_input(self) -> ModelInput:
        positions = tuple(range(len(self.features)))
        ids = JaggedBatch(positions, self.values.numpy(), self.lengths.numpy())
        return ModelInput(len(self.dense), (ids,), (self.dense.numpy().astype(np.float32),))


def make_batch(tables: Sequence[Table] = TABLES, size: int = 64, seed: int = 3) -> Batch:
    """Bags of 0 to 6 ids, with empty bags and repeated ids."""
    generator = torch.Generator().manual_seed(seed)
    rows = [table.rows for table in tables for _ in table.features]
    lengths = torch.randint(0, 7, (len(rows), size), generator=generator)
    lengths[:, 0] = 0
    lengths[:, 1] = 3
    values = []
    for feature, high in enumerate(rows):
        ids = torch.randint(0, high, (int(lengths[feature].sum()),), generator=generator)
        ids[:3] = ids[0]
        values.append(ids)
    return Batch(
        tuple(feature for table in tables for feature in table.features),
        torch.cat(values),
        lengths,
        torch.randn(size, DENSE_WIDTH, generator=generator),
    )


@contextmanager
def torchrec() -> Iterator[TorchRec]:
    """TorchRec, without its warnings; skips the test if it is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchrec", reason=REASON)
        import torchrec.inference.modules as inference
        import torchrec.models.dlrm as dlrm
        import torchrec.modules.embedding_configs as configs
        import torchrec.modules.embedding_modules as embeddings
        import torchrec.sparse.jagged_tensor as sparse

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            yield TorchRec(dlrm, embeddings, configs, inference, sparse)
