"""Training of the demo's model: a small DLRM on a click log."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from serving.demo.criteo import DENSE_COUNT, FEATURES, Examples
from sharded_infer.zoo.dlrm import DLRM

BATCH_SIZE = 64

# Chosen on a validation part of the training lines, never on the test lines.
_TABLE_STEP = 0.01
_TOWER_STEP = 0.001
_INITIAL_DEVIATION = 0.01
_DROPPED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained DLRM in fp32, in eval mode.

    Tables C1 to C26 have weights fp32 `[rows, dim]`. The tower computes a click's probability `[B]`
    from `dense [B, 13]` and `embeddings [B, 26 * dim]`.
    """

    embeddings: dict[str, nn.EmbeddingBag]
    tower: DLRM

    def scores(self, examples: Examples, batch_size: int) -> NDArray[np.float32]:
        """Probabilities of a click, `[N]`."""
        parts = [np.empty(0, np.float32)]
        with torch.no_grad():
            for start in range(0, len(examples), batch_size):
                batch = examples.select(slice(start, start + batch_size))
                pooled = _pool(self.embeddings, batch).flatten(1)
                parts.append(self.tower(torch.from_numpy(batch.dense), pooled).numpy())
        return np.concatenate(parts)


def train(
    examples: Examples, *, dim: int, epochs: int, seed: int, on_step: Callable[[int], None]
) -> TrainedModel:
    """Train tables and tower; one or two epochs suffice, more overfit small logs.

    Minimises the log loss, the tables by Adagrad (Duchi et al. 2011, JMLR 12) and the tower by
    AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101). While training, every sample loses a
    random share of its features, so that the tower does not rely on features with little data.

    The seed is of initial weights, order and dropout; torch's global generator stays as it was.
    `on_step` is called after each batch with the step of the whole training, from 1.
    """
    # Layers draw their initial weights from the global generator only.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        embeddings = _initial_tables(examples.rows, dim)
        tower = DLRM(
            dense_width=DENSE_COUNT,
            feature_dims=[dim] * len(FEATURES),
            bottom=[128, dim],
            top=[256, 128, 1],
        )
    generator = torch.Generator().manual_seed(seed)
    weights = [table.weight for table in embeddings.values()]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adagrad(weights, lr=_TABLE_STEP),
        torch.optim.AdamW(tower.parameters(), lr=_TOWER_STEP),
    ]
    # Adagrad builds sparse gradients from ours; torch warns unless told to trust them.
    trusted = torch.sparse.check_sparse_tensor_invariants(enable=False)  # type: ignore[no-untyped-call]
    with trusted:
        for step, batch in enumerate(_batches(examples, epochs, seed), start=1):
            pooled = _drop_features(_pool(embeddings, batch), generator)
            logits = tower.logits(torch.from_numpy(batch.dense), pooled.flatten(1))
            loss = nn.functional.binary_cross_entropy_with_logits(
                logits, torch.from_numpy(batch.labels)
            )
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.autograd.backward(loss)
            for optimizer in optimizers:
                optimizer.step()
            on_step(step)
    for module in (*embeddings.values(), tower):
        module.eval()
    return TrainedModel(embeddings=embeddings, tower=tower)


def _initial_tables(rows: tuple[int, ...], dim: int) -> dict[str, nn.EmbeddingBag]:
    tables = {
        feature: nn.EmbeddingBag(count, dim, mode="sum", sparse=True)
        for feature, count in zip(FEATURES, rows, strict=True)
    }
    for table in tables.values():
        # Near zero, so that a value that was never trained on adds nothing.
        nn.init.normal_(table.weight, std=_INITIAL_DEVIATION)
    return tables


def _batches(examples: Examples, epochs: int, seed: int) -> Iterator[Examples]:
    generator = np.random.default_rng(seed)
    for _ in range(epochs):
        order = generator.permutation(len(examples))
        for start in range(0, len(examples), BATCH_SIZE):
            yield examples.select(order[start : start + BATCH_SIZE])


def _pool(embeddings: Mapping[str, nn.EmbeddingBag], batch: Examples) -> Tensor:
    """Look up and sum each bag: fp32 `[B, F, dim]`."""
    pooled = []
    for table, ids, present in zip(embeddings.values(), batch.ids.T, batch.present.T, strict=True):
        starts = np.cumsum(present) - present
        pooled.append(table(torch.from_numpy(ids[present]), torch.from_numpy(starts)))
    return torch.stack(pooled, dim=1)


def _drop_features(pooled: Tensor, generator: torch.Generator) -> Tensor:
    kept = torch.rand(*pooled.shape[:2], 1, generator=generator) >= _DROPPED_SHARE
    return pooled * kept / (1.0 - _DROPPED_SHARE)
