"""Samples to a request's inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted, did_you_mean
from sharded_infer.errors import RequestError
from sharded_infer.samples.outcomes import is_outcome, outcome_names
from sharded_infer.samples.sample import Sample, place_of
from sharded_infer.spec import ModelSpec


def batch_samples(
    spec: ModelSpec, samples: Sequence[Sample], label_columns: Mapping[str, str] | None = None
) -> dict[str, NDArray[np.generic]]:
    """Samples as one request: inputs by name, without labels and reference scores.

    Args:
        spec: the model.
        samples: at least one.
        label_columns: the label's column by output, where it has a name of its own.

    Returns:
        Dense inputs fp32 `[B, width]`; of each feature that a sample names, ids int64 `[N]` and
        `<feature>.lengths` int32 `[B]`.

    Raises:
        RequestError: no samples, an unknown name, no sample with a feature that the model requires,
            or a value that is not ids or numbers; names
            the sample and the input.
    """
    if not samples:
        raise RequestError("the input holds no samples")
    features = set(spec.sparse_inputs)
    known = features | set(spec.dense.inputs)
    named = {name for sample in samples for name in sample}
    unknown = {name for name in named - known if not is_outcome(spec, name, label_columns)}
    for number, sample in enumerate(samples if unknown else ()):
        if strange := sorted(unknown & set(sample)):
            raise RequestError(
                f"{place_of(number, sample)}: {strange[0]!r} is not one of the model's inputs"
                f"{did_you_mean(strange[0], known | outcome_names(spec, label_columns or {}))}"
            )
    if missing := sorted(spec.required_inputs - named):
        raise RequestError(f"{missing[0]!r} is in none of the samples: the model requires it")
    inputs: dict[str, NDArray[np.generic]] = {}
    for name, width in spec.dense.inputs.items():
        rows = [_dense(number, name, s, width) for number, s in enumerate(samples)]
        inputs[name] = np.array(rows, np.float32)
    for name in features & named:
        bags = [_ids(number, name, sample) for number, sample in enumerate(samples)]
        inputs[name] = np.array([i for bag in bags for i in bag], np.int64)
        inputs[f"{name}.lengths"] = np.array([len(bag) for bag in bags], np.int32)
    return inputs


def _dense(number: int, name: str, sample: Sample, width: int) -> list[float]:
    value = sample.get(name)
    values = value if isinstance(value, list) else [value]
    if len(values) != width or not all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    ):
        raise RequestError(
            f"{place_of(number, sample)}, {name!r}: expected "
            f"{counted(width, 'number')}, got {value!r:.80}"
        )
    return [float(str(v)) for v in values]


def _ids(number: int, name: str, sample: Sample) -> list[int]:
    value = sample.get(name, [])
    ids: list[Any] = value if isinstance(value, list) else [value]
    if not all(type(i) is int and -(2**63) <= i < 2**63 for i in ids):
        raise RequestError(
            f"{place_of(number, sample)}, {name!r}: expected an id or a list of ids, "
            f"got {value!r:.80}"
        )
    return ids
