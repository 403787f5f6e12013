"""Training of the demo's model: a small DLRM on a click log."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from serving.demo.criteo import DENSE_COUNT, FEATURES, Examples
from sharded_infer.errors import InputError
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
        """Probabilities of a click, `[N]`; InputError for a batch size below 1 or other tables."""
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        rows = tuple(table.num_embeddings for table in self.embeddings.values())
        if examples.rows != rows:
            raise InputError(f"the model's tables have {rows} rows, the examples' {examples.rows}")
        parts = [np.empty(0, np.float32)]
        with torch.no_grad():
            for start in range(0, len(examples), batch_size):
                batch = examples.slice(start, start + batch_size)
                pooled = _pool(self.embeddings, batch).flatten(1)
                parts.append(self.tower(torch.from_numpy(batch.dense), pooled).numpy())
        return np.concatenate(parts)


def train(
    examples: Examples,
    *,
    dim: int = 64,
    epochs: int,
    seed: int,
    on_step: Callable[[int, int, float], None],
) -> TrainedModel:
    """Train tables and tower on `examples`; one or two epochs suffice, more overfit small logs.

    Minimises the log loss, the tables by Adagrad (Duchi et al. 2011, JMLR 12) and the tower by
    AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101). While training, every sample loses a
    random share of its features, so that the tower does not rely on features with little data.

    Args:
        dim: of every table.
        epochs: passes over the samples, in batches of `BATCH_SIZE`.
        seed: of initial weights, order and dropout; torch's global generator is left as it was.
        on_step: called after each batch with the epoch and the step of the whole training, both
            from 1, and the batch's mean log loss.

    Raises:
        InputError: no examples, or `dim` or `epochs` below 1.
    """
    for name, number in (
        ("dim", dim),
        ("epochs", epochs),
        ("the number of examples", len(examples)),
    ):
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}")
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
        for step, (epoch, batch) in enumerate(_batches(examples, epochs, seed), start=1):
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
            on_step(epoch, step, loss.item())
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


def _batches(examples: Examples, epochs: int, seed: int) -> Iterator[tuple[int, Examples]]:
    generator = np.random.default_rng(seed)
    for epoch in range(1, epochs + 1):
        order = generator.permutation(len(examples))
        for start in range(0, len(examples), BATCH_SIZE):
            yield epoch, examples.select(order[start : start + BATCH_SIZE])


def _pool(embeddings: Mapping[str, nn.EmbeddingBag], batch: Examples) -> Tensor:
    """Look up and sum each bag: fp32 `[B, F, dim]`."""
    ids = torch.split(torch.from_numpy(batch.values), batch.lengths.sum(axis=1).tolist())
    # Start of a bag within its feature's ids.
    starts = torch.from_numpy(batch.bag_starts - batch.bag_starts[:, :1])
    tables = zip(embeddings.values(), ids, starts, strict=True)
    return torch.stack([table(values, offsets) for table, values, offsets in tables], dim=1)


def _drop_features(pooled: Tensor, generator: torch.Generator) -> Tensor:
    kept = torch.rand(*pooled.shape[:2], 1, generator=generator) >= _DROPPED_SHARE
    return pooled * kept / (1.0 - _DROPPED_SHARE)
