"""The demo's sequence models: one of the zoo's, trained on ratings, and its requests."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.demo.scoring import MAX_AUC_DIFFERENCE, RequestArrays
from serving.demo.sequences.generated_ratings import generate_ratings
from serving.demo.sequences.ratings import RATINGS, RatingLog, read_ratings
from serving.demo.sequences.samples import (
    MAX_LENGTH,
    SequenceSamples,
    SplitSamples,
    split_samples,
)
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
    """A trained model, and the samples that it was trained on and not."""

    spec: ModelSpec
    trained: TrainedSequenceModel
    split: SplitSamples

    def arrays(
        self, samples: SequenceSamples, candidates: NDArray[np.int64] | None = None
    ) -> RequestArrays:
        """A request's inputs, by name.

        Args:
            candidates: int64 `[C]`, which share the history of one sample; None: each sample's own.
        """
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
        """The fp32 model's scores, fp32 `[N]`."""
        return self.trained.scores(samples, _REFERENCE_BATCH)

    def difference(self, trained: NDArray[np.float32], served: NDArray[np.float32]) -> float:
        """The largest difference between scores of the fp32 model and served ones, each `[N]`.

        Raises:
            ShardedInferError: it is more than the gate allows.
        """
        found, allowed = float(np.abs(served - trained).max()), self.spec.gate.max_score_diff
        if found > allowed:
            raise ShardedInferError(
                f"served scores differ from the fp32 model's by up to {found:.2g}, the gate allows "
                f"{allowed:g}"
            )
        return found


def train_sequence_demo(
    architecture: str, ratings: Path | None, rows: int, progress: Progress
) -> SequenceDemo:
    """Trains on the ratings of the first four fifths of a log's time.

    Args:
        architecture: a key of `OPTIONS`.
        ratings: the log; None generates one.
        rows: ratings to generate, or the most ratings to read.

    Raises:
        InputError: a bad log, or one with too few ratings.
    """
    split = split_samples(_read(ratings, rows, progress), _SEED)
    steps = _EPOCHS * -(-len(split.training) // BATCH_SIZE)
    trained = train_sequences(
        architecture,
        split.training,
        epochs=_EPOCHS,
        seed=_SEED,
        on_step=lambda step, _loss: progress("training", step, steps),
    )
    companions = ARCHITECTURES[architecture].companions or ()
    history = SequenceSpec(
        max_length=MAX_LENGTH,
        features=(HISTORY, "action"),
        dense=dict.fromkeys(companions, 1),
    )
    spec = ModelSpec(
        name=f"ratings_{architecture}",
        tables=(
            TableSpec("item", split.training.item_rows, DIM, features=("item", HISTORY)),
            TableSpec("action", RATINGS, ACTION_DIM),
        ),
        tower=TowerSpec(
            architecture=architecture,
            options=dict(OPTIONS[architecture]),
            user_inputs=(HISTORY,),
        ),
        gate=GateSpec(max_auc_drop=MAX_AUC_DIFFERENCE),
        sequences={HISTORY: history},
    )
    return SequenceDemo(spec, trained, split)


def _read(ratings: Path | None, rows: int, progress: Progress) -> RatingLog:
    progress("reading ratings", 0, 1)
    if ratings is None:
        with tempfile.TemporaryDirectory(prefix="sharded-infer-demo-") as folder:
            path = Path(folder) / "ratings.csv"
            generate_ratings(path, rows, _SEED)
            log = read_ratings(path, None)
    else:
        log = read_ratings(ratings, rows)
    progress("reading ratings", 1, 1)
    return log
