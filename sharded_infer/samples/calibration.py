"""Calibration samples: a model's inputs with labels and reference scores beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.errors import RequestError
from sharded_infer.golden import load_samples
from sharded_infer.quality import CalibrationSamples, check_samples
from sharded_infer.samples.outcomes import outcome_columns
from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.sample import Sample, place_of
from sharded_infer.samples.text import read_samples
from sharded_infer.spec import ModelSpec


def read_calibration(
    spec: ModelSpec, path: Path, label_columns: Mapping[str, str] | None = None
) -> CalibrationSamples:
    """Reads samples to measure a version on.

    An output's labels are in the column that `label_columns` gives it, else in `label.<output>`,
    else in `label`: 0 or 1, empty or left out where it is not known. The trained model's own scores
    are in `reference.<output>`; of a model with one output, also in `reference`.

    Args:
        spec: the model.
        path: `.safetensors` as golden requests are kept, with labels `[B]` and reference scores
            `[B]` or `[B, K]`; else `.tsv` or JSON.
        label_columns: the label's column by output, where it has a name of its own.

    Raises:
        InputError: the file cannot be read.
        RequestError: it holds something else than samples of this model; names the sample.
    """
    measured = _read(spec, path, label_columns or {})
    check_samples(spec, measured)
    return measured


def _read(spec: ModelSpec, path: Path, label_columns: Mapping[str, str]) -> CalibrationSamples:
    if path.suffix == ".safetensors":
        model_input, tensors = load_samples(path, spec)
        columns = outcome_columns(spec, tensors, label_columns)
        return CalibrationSamples(
            model_input,
            {o: tensors[name].astype(np.float32) for o, name in columns.labels.items()},
            {o: tensors[name].astype(np.float32) for o, name in columns.references.items()},
        )
    samples = read_samples(path)
    columns = outcome_columns(spec, {name for s in samples for name in s}, label_columns)
    model_input = _one_batch(spec, batch_samples(spec, samples, label_columns), len(samples))
    return CalibrationSamples(
        model_input,
        {output: _labels(name, samples) for output, name in columns.labels.items()},
        {output: _references(name, samples) for output, name in columns.references.items()},
    )


def _labels(name: str, samples: Sequence[Sample]) -> NDArray[np.float32]:
    return np.array([_label(n, name, sample) for n, sample in enumerate(samples)], np.float32)


def _label(number: int, name: str, sample: Sample) -> float:
    value = sample.get(name)
    if value is None or value == []:
        return float("nan")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or value not in (0, 1):
        raise RequestError(
            f"{place_of(number, sample)}, {name!r}: expected 0 or 1, got {value!r:.80}"
        )
    return float(str(value))


def _references(name: str, samples: Sequence[Sample]) -> NDArray[np.float32]:
    """fp32 `[B]` of numbers, or of lists of one; `[B, K]` of lists of K."""
    rows = [_reference(n, name, sample) for n, sample in enumerate(samples)]
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise RequestError(
                f"{place_of(number, samples[number])}, {name!r}: expected "
                f"{counted(len(rows[0]), 'score')} as "
                f"in {place_of(0, samples[0])}, got {len(row)}"
            )
    scores = np.array(rows, np.float32)
    return scores[:, 0] if scores.shape[1] == 1 else scores


def _reference(number: int, name: str, sample: Sample) -> list[float]:
    value = sample.get(name)
    scores: list[Any] = value if isinstance(value, list) else [value]
    if not scores or not all(type(score) in (int, float) for score in scores):
        raise RequestError(
            f"{place_of(number, sample)}, {name!r}: expected the trained model's score, or a list "
            f"of its scores, got {value!r:.80}"
        )
    return [float(str(score)) for score in scores]


def _one_batch(
    spec: ModelSpec, arrays: Mapping[str, NDArray[np.generic]], samples: int
) -> ModelInput:
    values: list[NDArray[np.int64]] = []
    lengths: list[NDArray[np.int64]] = []
    for feature in spec.features:
        values.append(arrays.get(feature.name, np.empty(0)).astype(np.int64))
        lengths.append(arrays.get(f"{feature.name}.lengths", np.zeros(samples)).astype(np.int64))
    features = tuple(range(len(spec.features)))
    batch = JaggedBatch(features, np.concatenate(values), np.stack(lengths))
    dense = tuple(arrays[name].astype(np.float32) for name in spec.dense.inputs)
    return ModelInput(samples, (batch,), dense)
