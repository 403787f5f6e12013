"""The demo's sequence models, from the zoo, trained on ratings, and their requests."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.demo.scoring import MAX_AUC_DIFFERENCE, RequestArrays
from serving.demo.sequences.generated_ratings import generated_ratings
from serving.demo.sequences.ratings import RATINGS, read_ratings
from serving.demo.sequences.samples import MAX_LENGTH, SequenceSamples, SplitSamples, split_samples
from serving.demo.sequences.training import (
    ACTION_DIM,
    BATCH_SIZE,
    DIM,
    OPTIONS,
    TrainedSequenceModel,
    train_sequences,
)
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.zoo.registry import AGE, ARCHITECTURES, HISTORY

_EPOCHS = 3
_SEED = 2025
_REFERENCE_BATCH = 512


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

    def trained_scores(self, samples: SequenceSamples) -> NDArray[np.float32]:
        """Scores of the fp32 model, `[N]`."""
        return self.trained.scores(samples, _REFERENCE_BATCH)

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
    """Train on the ratings of the first four fifths of a log's time.

    The architecture is a key of `OPTIONS`. A log of `rows` ratings is generated if there is none;
    otherwise at most `rows` are read. Raises InputError for a bad log, or too few ratings.
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
