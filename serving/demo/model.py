"""The demo's DLRM, its training on a click log, and the held-out lines."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.wording import counted
from serving.demo.criteo import (
    DENSE_COUNT,
    FEATURES,
    Examples,
    Vocabulary,
    generated_clicks,
    read_clicks,
)
from serving.demo.raw_ids import hashed_texts, id_maps_of
from serving.demo.scoring import RequestArrays
from sharded_infer.errors import InputError
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.progress import Progress
from sharded_infer.specs.model_spec import DenseSpec, GateSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.zoo.dlrm import DLRM

MODEL = "criteo_dlrm"
DIM = 64
_EPOCHS = 2
_TRAINING_SHARE = 0.8
_MIN_COUNT = 8  # a category seen less often shares row 0 with the unseen
_SEED = 2024
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
    Torch's global generator stays as it was. `on_step` gets the steps of the whole training.
    """
    # Layers draw their initial weights from the global generator only.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        embeddings = {
            feature: nn.EmbeddingBag(count, dim, mode="sum", sparse=True)
            for feature, count in zip(FEATURES, examples.rows, strict=True)
        }
        for table in embeddings.values():
            # Near zero, so that a value that was never trained on adds nothing.
            nn.init.normal_(table.weight, std=_INITIAL_DEVIATION)
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
            pooled = _pool(embeddings, batch)
            kept = torch.rand(*pooled.shape[:2], 1, generator=generator) >= _DROPPED_SHARE
            inputs = (pooled * kept / (1.0 - _DROPPED_SHARE)).flatten(1)
            logits = tower.logits(torch.from_numpy(batch.dense), inputs)
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


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A trained model, with id maps from categories to rows by table (none without raw ids)."""

    spec: ModelSpec
    trained: TrainedModel
    training: Examples
    held_out: Examples
    id_maps: Mapping[str, IdMapSource]


def train_demo(
    data: Path | None, rows: int, progress: Progress, *, raw_ids: bool = False
) -> DemoModel:
    """Train on the first four fifths of a click log, which is generated if `data` is None.

    Raises InputError for a bad log, or fewer than 10 lines.
    """
    progress("reading clicks", 0, 1)
    log = generated_clicks(rows, _SEED) if data is None else read_clicks(data, rows)
    progress("reading clicks", 1, 1)
    training_rows = int(len(log.labels) * _TRAINING_SHARE)
    if len(log.labels) - training_rows < 2:
        raise InputError(f"{data}: {counted(len(log.labels), 'row')}, expected at least 10")
    vocabulary = Vocabulary.fit(log.slice(0, training_rows), min_count=_MIN_COUNT)
    examples = vocabulary.encode(log, keep_texts=raw_ids)
    training = examples.select(slice(training_rows))
    steps = _EPOCHS * -(-training_rows // BATCH_SIZE)
    trained = train(
        training,
        dim=DIM,
        epochs=_EPOCHS,
        seed=_SEED,
        on_step=lambda step: progress("training", step, steps),
    )
    spec = ModelSpec(
        name=MODEL,
        tables=tuple(
            TableSpec(name, table.num_embeddings, DIM) for name, table in trained.embeddings.items()
        ),
        dense=DenseSpec({"dense": DENSE_COUNT}),
        tower=TowerSpec(outputs=("score",)),
        gate=GateSpec(max_score_diff=0.02),
    )
    return DemoModel(
        spec=spec,
        trained=trained,
        training=training,
        held_out=examples.select(slice(training_rows, None)),
        id_maps=id_maps_of(vocabulary) if raw_ids else {},
    )


def model_input(examples: Examples) -> ModelInput:
    """One batch for the model, with raw ids if the texts are kept."""
    present = examples.present.T
    if examples.texts is None:
        ids = examples.ids.T[present]
    else:
        ids = hashed_texts(examples.texts.T[present])
    batch = JaggedBatch(tuple(range(len(FEATURES))), ids, present.astype(np.int64))
    return ModelInput(len(examples), (batch,), (examples.dense,))


def request_arrays(examples: Examples) -> RequestArrays:
    """A request's inputs by name, with texts if these are kept."""
    # A bag may be empty, so every feature comes with its lengths.
    arrays: dict[str, NDArray[np.generic]] = {"dense": examples.dense}
    ids = examples.ids if examples.texts is None else examples.texts
    for feature, name in enumerate(FEATURES):
        present = examples.present[:, feature]
        arrays[name] = ids[present, feature]
        arrays[f"{name}.lengths"] = present.astype(np.int32)
    return arrays
