"""The demo's sequence models, from the zoo: training on ratings, and requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from serving.demo.scoring import MAX_AUC_DIFFERENCE, RequestArrays
from serving.demo.sequences.ratings import RATINGS, generated_ratings, read_ratings
from serving.demo.sequences.samples import MAX_LENGTH, SequenceSamples, SplitSamples, split_samples
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.registry import AGE, ARCHITECTURES, HISTORY, build_tower

_EPOCHS = 3
_SEED = 2025
_REFERENCE_BATCH = 512
BATCH_SIZE = 128
DIM = 32
ACTION_DIM = 8

# Chosen on the log that is generated with seed 2024: report figures of others.
_TABLE_STEP = 0.02
_TOWER_STEP = 0.003
_TABLE_DECAY = 0.01
_INITIAL_DEVIATION = 0.1

# The towers' sizes, in the form of a description's `[tower]`.
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "din": {"attention": 36, "top": [64, 1]},
    "sasrec": {"blocks": 1, "heads": 2},
    "bst": {"heads": 2, "time_buckets": 64, "top": [64, 1]},
    "hstu": {"layers": 1, "heads": 2, "time_buckets": 64, "top": [64, 1]},
}


@dataclass(frozen=True, slots=True)
class TrainedSequenceModel:
    """A trained model of the zoo in fp32, in eval mode.

    Tables are `item` `[item_rows, DIM]` and `action` `[10, ACTION_DIM]`. The tower takes `history`,
    `history_lengths`, `age` if the architecture has it, and candidates as `embeddings` `[B, DIM]`.
    """

    architecture: str
    tables: Mapping[str, nn.Embedding]
    tower: nn.Module

    def inputs(self, samples: SequenceSamples) -> dict[str, Tensor]:
        """The tower's inputs for all of `samples`, by name."""
        padded = samples.padded()
        items, actions = self.tables["item"], self.tables["action"]
        steps = [items(torch.from_numpy(padded.items)), actions(torch.from_numpy(padded.actions))]
        inputs = {
            HISTORY: torch.cat(steps, dim=2),
            f"{HISTORY}_lengths": torch.from_numpy(samples.lengths),
        }
        if ARCHITECTURES[self.architecture].companions:
            inputs[AGE] = torch.from_numpy(padded.ages).unsqueeze(2)
        return inputs | {"embeddings": items(torch.from_numpy(samples.candidates))}

    def scores(
        self, samples: SequenceSamples, batch_size: int = _REFERENCE_BATCH
    ) -> NDArray[np.float32]:
        """Probability that the user rates the candidate, of each sample: fp32 `[N]`."""
        parts = [np.empty(0, np.float32)]
        with torch.no_grad():
            for start in range(0, len(samples), batch_size):
                batch = samples.select(slice(start, start + batch_size))
                parts.append(self.tower(**self.inputs(batch)).numpy())
        return np.concatenate(parts)


def train_sequences(
    architecture: str,
    samples: SequenceSamples,
    *,
    epochs: int,
    seed: int,
    on_step: Callable[[int], None],
) -> TrainedSequenceModel:
    """Train tables and tower on at least one sample; the architecture is a key of `OPTIONS`.

    Minimises the log loss by AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101). Torch's global
    generator stays as it was. `on_step` gets the steps of the whole training.
    """
    # Layers draw their initial weights from the global generator only.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        items = nn.Embedding(samples.item_rows, DIM)
        model_tables = {"item": items, "action": nn.Embedding(RATINGS, ACTION_DIM)}
        for table in model_tables.values():
            # Near zero, so that an item that was never trained on adds little.
            nn.init.normal_(table.weight, std=_INITIAL_DEVIATION)
        companions = ARCHITECTURES[architecture].companions or ()
        sizes = SequenceSizes((DIM, ACTION_DIM), MAX_LENGTH, dict.fromkeys(companions, 1))
        built = build_tower(
            architecture,
            dense_inputs={},
            feature_dims=[DIM],
            options=OPTIONS[architecture],
            sequences={HISTORY: sizes},
        )
    model = TrainedSequenceModel(architecture, model_tables, built)
    tables = [table.weight for table in model.tables.values()]
    optimizer = torch.optim.AdamW(
        [
            {"params": tables, "lr": _TABLE_STEP, "weight_decay": _TABLE_DECAY},
            {"params": model.tower.parameters(), "lr": _TOWER_STEP},
        ]
    )
    generator = np.random.default_rng(seed)
    # The zoo's towers have logits; `nn.Module` does not say so.
    tower: Any = model.tower
    step = 0
    for _ in range(epochs):
        order = generator.permutation(len(samples))
        for start in range(0, len(samples), BATCH_SIZE):
            batch = samples.select(order[start : start + BATCH_SIZE])
            loss = nn.functional.binary_cross_entropy_with_logits(
                tower.logits(**model.inputs(batch)), torch.from_numpy(batch.labels)
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            step += 1
            on_step(step)
    for module in (*model.tables.values(), model.tower):
        module.eval()
    return model


@dataclass(frozen=True, slots=True)
class SequenceDemo:
    """A trained model, with its training and held-out samples."""

    spec: ModelSpec
    trained: TrainedSequenceModel
    split: SplitSamples

    def arrays(
        self, samples: SequenceSamples, candidates: NDArray[np.int64] | None = None
    ) -> RequestArrays:
        """A request's inputs by name; candidates `[C]` share the history of one sample."""
        padded = samples.padded()
        arrays: dict[str, NDArray[np.generic]] = {
            "item": samples.candidates if candidates is None else candidates,
            HISTORY: padded.items,
            "action": padded.actions,
            f"{HISTORY}.lengths": samples.lengths,
        }
        if self.spec.sequences[HISTORY].dense:
            arrays[AGE] = padded.ages
        return arrays

    def difference(self, trained: NDArray[np.float32], served: NDArray[np.float32]) -> float:
        """Largest difference of served scores; ShardedInferError if the gate does not allow it."""
        largest, allowed = float(np.abs(served - trained).max()), self.spec.gate.max_score_diff
        if largest > allowed:
            raise ShardedInferError(
                f"served scores differ from the fp32 model's by up to {largest:.2g}, the gate "
                f"allows {allowed:g}"
            )
        return largest


def train_sequence_demo(
    architecture: str, ratings: Path | None, rows: int, progress: Progress
) -> SequenceDemo:
    """Train on the first four fifths of a log's time, which is generated if `ratings` is None.

    Raises InputError for a bad log, or too few ratings.
    """
    progress("reading ratings", 0, 1)
    log = generated_ratings(rows, _SEED) if ratings is None else read_ratings(ratings, rows)
    progress("reading ratings", 1, 1)
    split = split_samples(log, _SEED)
    steps = _EPOCHS * -(-len(split.training) // BATCH_SIZE)
    trained = train_sequences(
        architecture,
        split.training,
        epochs=_EPOCHS,
        seed=_SEED,
        on_step=lambda step: progress("training", step, steps),
    )
    companions = ARCHITECTURES[architecture].companions or ()
    history = SequenceSpec(
        max_length=MAX_LENGTH, features=(HISTORY, "action"), dense=dict.fromkeys(companions, 1)
    )
    spec = ModelSpec(
        name=f"ratings_{architecture}",
        tables=(
            TableSpec("item", split.training.item_rows, DIM, features=("item", HISTORY)),
            TableSpec("action", RATINGS, ACTION_DIM),
        ),
        tower=TowerSpec(
            architecture=architecture, options=dict(OPTIONS[architecture]), user_inputs=(HISTORY,)
        ),
        gate=GateSpec(max_auc_drop=MAX_AUC_DIFFERENCE),
        sequences={HISTORY: history},
    )
    return SequenceDemo(spec, trained, split)
