"""Calibration samples: a model's inputs with labels and reference scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.artifacts.golden import load_samples
from sharded_infer.errors import RequestError
from sharded_infer.inputs.columns import Columns, cells_of, columns_of
from sharded_infer.inputs.outcomes import outcome_columns
from sharded_infer.quality.quality import CalibrationSamples, check_samples
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.request import model_input_of
from sharded_infer.specs.model_spec import ModelSpec


def read_calibration(
    spec: ModelSpec, data: object, label_columns: Mapping[str, str] | None = None
) -> CalibrationSamples:
    """Read samples to measure a version on.

    An output's labels are in its column of `label_columns`, else in `label.<output>`, else in
    `label`: 0 or 1, empty or missing if unknown. The trained model's own scores are in
    `reference.<output>`; of a model with one output, also in `reference`.

    Args:
        data: a file's path: `.safetensors` like golden requests, with labels `[B]` and reference
            scores `[B]` or `[B, K]`; `.parquet`, `.csv`, `.tsv` or JSON. Or a DataFrame, a mapping
            of arrays or tensors by name, or a list of samples, each a mapping.
        label_columns: nondefault label columns by output; None takes those of the spec's gate.

    Raises:
        InputError: the file is unreadable.
        RequestError: it does not hold samples of this model; names the sample.
    """
    if isinstance(data, CalibrationSamples):
        measured = data
    elif isinstance(data, str | Path) and Path(data).suffix == ".safetensors":
        measured = _read_tensors(spec, Path(data), label_columns)
    else:
        columns = (
            read_samples(data, strings=spec.string_inputs, model=spec.name)
            if isinstance(data, str | Path)
            else columns_of(data)
        )
        measured = _measured(spec, columns, label_columns)
    check_samples(spec, measured)
    return measured


def _read_tensors(
    spec: ModelSpec, path: Path, label_columns: Mapping[str, str] | None
) -> CalibrationSamples:
    model_input, tensors = load_samples(path, spec)
    columns = outcome_columns(spec, tensors, label_columns)
    return CalibrationSamples(
        model_input,
        {o: tensors[name].astype(np.float32) for o, name in columns.labels.items()},
        {o: tensors[name].astype(np.float32) for o, name in columns.references.items()},
    )


def _measured(
    spec: ModelSpec, columns: Columns, label_columns: Mapping[str, str] | None
) -> CalibrationSamples:
    model_input = model_input_of(spec, columns, label_columns)
    outcomes = outcome_columns(spec, columns.values, label_columns)
    return CalibrationSamples(
        model_input,
        {output: _labels(name, columns) for output, name in outcomes.labels.items()},
        {output: _references(name, columns) for output, name in outcomes.references.items()},
    )


def _labels(name: str, columns: Columns) -> NDArray[np.float32]:
    cells = cells_of(columns.values[name])
    return np.array([_label(n, name, c, columns) for n, c in enumerate(cells)], np.float32)


def _label(number: int, name: str, value: Any, columns: Columns) -> float:
    if value is None or value == []:
        return float("nan")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    # Boolean columns are labels; true in JSON is taken for a mistake, as it always was.
    is_truth = isinstance(value, bool) and columns.rows is None
    if not is_truth and (isinstance(value, bool) or value not in (0, 1)):
        raise RequestError(f"{columns.place(number)}, {name!r}: expected 0 or 1, got {value!r:.80}")
    return float(value)


def _references(name: str, columns: Columns) -> NDArray[np.float32]:
    """fp32 `[B]` of numbers, or of lists of one; `[B, K]` of lists of K."""
    cells = cells_of(columns.values[name])
    rows = [_reference(number, name, cell, columns) for number, cell in enumerate(cells)]
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise RequestError(
                f"{columns.place(number)}, {name!r}: expected {counted(len(rows[0]), 'score')} as "
                f"in {columns.place(0)}, got {len(row)}"
            )
    with np.errstate(over="ignore"):
        scores = np.array(rows, np.float32)
    return scores[:, 0] if scores.shape[1] == 1 else scores


def _reference(number: int, name: str, value: Any, columns: Columns) -> list[float]:
    scores: list[Any] = value if isinstance(value, list) else [value]
    if not scores or not all(type(score) in (int, float) for score in scores):
        came = "none, or NaN" if value is None or not scores else f"{value!r:.80}"
        raise RequestError(
            f"{columns.place(number)}, {name!r}: expected the trained model's score, or a list "
            f"of its scores, got {came}"
        )
    return [float(str(score)) for score in scores]
