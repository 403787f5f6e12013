"""Samples as one request."""

from collections.abc import Mapping

from sharded_infer.errors import RequestError
from sharded_infer.inputs.columns import columns_of
from sharded_infer.inputs.feature_columns import Arrays
from sharded_infer.inputs.input_columns import input_arrays
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.specs.model_spec import ModelSpec


def batch_samples(
    spec: ModelSpec, samples: object, label_columns: Mapping[str, str] | None = None
) -> Arrays:
    """Samples as one request: inputs by name, without labels and reference scores.

    Strings of features that take them are hashed. `samples` have any of the forms of `columns_of`,
    at least one; `label_columns` are as in `read_calibration`.

    Raises:
        InputError: the samples have another form.
        RequestError: no samples, an unknown name, no sample with a required feature, or a value
            that is not ids or numbers; names the sample and the input.
    """
    columns = columns_of(samples)
    if not columns.values or columns.rows == 0:
        raise RequestError("the input holds no samples")
    if missing := sorted(spec.required_inputs - set(columns.values)):
        raise RequestError(f"{missing[0]!r} is in none of the samples: the model requires it")
    return input_arrays(spec, columns, label_columns)


def model_input_of(
    spec: ModelSpec, samples: object, label_columns: Mapping[str, str] | None = None
) -> ModelInput:
    """Samples as one jagged batch of all features; arguments and errors as in `batch_samples`."""
    if isinstance(samples, ModelInput):
        return samples
    arrays = batch_samples(spec, samples, label_columns)
    found = make_input(spec, arrays)
    lone = [n for n, a in zip(spec.dense.inputs, found.dense, strict=True) if len(a) == 1]
    if len(found.groups) != 1:
        lone += [name for name in spec.sparse_inputs if len(arrays.get(name, ())) == 1]
    if lone and found.batch_size > 1:
        raise RequestError(f"input {lone[0]!r}: 1 sample, expected {found.batch_size}")
    return found
