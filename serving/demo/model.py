"""The demo's DLRM, trained on a click log, and the held-out lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from serving.demo.criteo import DENSE_COUNT, FEATURES, Examples, Vocabulary, read_clicks
from serving.demo.generated_clicks import generated_clicks
from serving.demo.raw_ids import hashed_texts, id_maps_of
from serving.demo.scoring import RequestArrays
from serving.demo.training import BATCH_SIZE, TrainedModel, train
from sharded_infer.errors import InputError
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.progress import Progress
from sharded_infer.specs.model_spec import DenseSpec, GateSpec, ModelSpec, TableSpec, TowerSpec

MODEL = "criteo_dlrm"
DIM = 64
_EPOCHS = 2
_TRAINING_SHARE = 0.8
_MIN_COUNT = 8  # a category seen less often shares row 0 with the unseen
_SEED = 2024


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
    """Train on the first four fifths of a click log, generated if `data` is None.

    Has `rows` lines if generated, at most if read. Raw ids need id maps and texts of categories.
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
