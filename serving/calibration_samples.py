"""Calibration samples in files: as `predict` reads samples, with a `label` beside their inputs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.samples import (
    LABEL,
    Sample,
    batch_samples,
    has_labels,
    place_of,
    read_samples,
    without_labels,
)
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.errors import RequestError
from sharded_infer.golden import load_samples
from sharded_infer.quality import CalibrationSamples, check_samples
from sharded_infer.spec import ModelSpec


def read_calibration(spec: ModelSpec, path: Path) -> CalibrationSamples:
    """Reads samples to measure a version on.

    Args:
        spec: the model.
        path: `.safetensors` as golden requests are kept, with `label` `[B]`; else `.tsv` or JSON
            with a column or key `label`, 0 or 1, empty or left out where it is not known.

    Raises:
        InputError: the file cannot be read.
        RequestError: it holds something else than samples of this model; names the sample.
    """
    measured = _read(spec, path)
    check_samples(spec, measured)
    return measured


def _read(spec: ModelSpec, path: Path) -> CalibrationSamples:
    if path.suffix == ".safetensors":
        model_input, labels = load_samples(path, spec)
        return CalibrationSamples(model_input, labels)
    samples = read_samples(path)
    labels = None
    if has_labels(spec, samples):
        labels = np.array([_label(n, s) for n, s in enumerate(samples)], np.float32)
    return CalibrationSamples(_one_batch(spec, without_labels(spec, samples)), labels)


def _label(number: int, sample: Sample) -> float:
    value = sample.get(LABEL)
    if value is None or value == []:
        return float("nan")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or value not in (0, 1):
        raise RequestError(
            f"{place_of(number, sample)}, {LABEL!r}: expected 0 or 1, got {value!r:.80}"
        )
    return float(str(value))


def _one_batch(spec: ModelSpec, samples: Sequence[Sample]) -> ModelInput:
    arrays = batch_samples(spec, samples)
    count = len(samples)
    values: list[NDArray[np.int64]] = []
    lengths: list[NDArray[np.int64]] = []
    for feature in spec.features:
        values.append(arrays.get(feature.name, np.empty(0)).astype(np.int64))
        lengths.append(arrays.get(f"{feature.name}.lengths", np.zeros(count)).astype(np.int64))
    features = tuple(range(len(spec.features)))
    batch = JaggedBatch(features, np.concatenate(values), np.stack(lengths))
    dense = tuple(arrays[name].astype(np.float32) for name in spec.dense.inputs)
    return ModelInput(count, (batch,), dense)
