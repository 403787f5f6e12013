"""Samples in files that people write: JSON and TSV, to inputs by name.

A sample names its features and dense inputs. JSON is one array of objects, or one object a line:

    {"dense": [0.5, 1.0], "C1": 7, "C2": [3, 1, 4]}

TSV has the names in its first line, and ids or numbers joined by commas in its cells:

    dense<TAB>C1<TAB>C2
    0.5,1.0<TAB>7<TAB>3,1,4

An empty cell, or a feature that a sample leaves out, is an empty bag.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InputError, RequestError
from sharded_infer.spec import ModelSpec

LABEL = "label"  # of a sample: what happened; no input, unless the model has one of this name

Sample = Mapping[str, object]


class LineSample(dict[str, object]):
    """A sample that came on a line of its own; `line` counts from 1, as editors do."""

    __slots__ = ("line",)

    def __init__(self, line: int, inputs: Mapping[str, object]) -> None:
        """Keeps both."""
        super().__init__(inputs)
        self.line = line


def place_of(number: int, sample: object) -> str:
    """Where a sample is, for people: its line, or its number, which counts from 0 as arrays do."""
    return f"line {sample.line}" if isinstance(sample, LineSample) else f"sample {number}"


def read_samples(path: Path, *, tsv: bool = False) -> list[Sample]:
    """Reads a file of samples.

    Args:
        path: `.tsv` is TSV, anything else JSON; `-` is standard input.
        tsv: the input is TSV, whatever its name.

    Raises:
        InputError: it cannot be read.
        RequestError: it holds something else than samples; names the line or sample.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return read_tsv(text) if tsv or path.suffix == ".tsv" else read_json(text)


def read_json(text: str) -> list[Sample]:
    """Reads samples from JSON.

    Raises:
        RequestError: not JSON, or not objects; names the line or the sample.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = [_json_line(n, line) for n, line in _lines(text)]
    samples = document if isinstance(document, list) else [document]
    for number, sample in enumerate(samples):
        if not isinstance(sample, dict):
            raise RequestError(f"sample {number}: expected a JSON object, got {sample!r:.80}")
    return samples


def _json_line(number: int, line: str) -> Sample:
    try:
        sample = json.loads(line)
    # Beside syntax: integers of thousands of digits, and thousands of brackets.
    except (ValueError, RecursionError) as error:
        raise RequestError(f"line {number}: not JSON: {error}") from error
    if not isinstance(sample, dict):
        raise RequestError(f"line {number}: expected a JSON object, got {sample!r:.80}")
    return LineSample(number, sample)


def read_tsv(text: str) -> list[Sample]:
    """Reads samples from TSV.

    Raises:
        RequestError: a line has another number of cells than the first, or a name comes twice;
            names the line.
    """
    lines = _lines(text)
    if not lines:
        raise RequestError("the input is empty: expected a line of names, then a line a sample")
    names = lines[0][1].split("\t")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise RequestError(f"line {lines[0][0]}: {repeated[0]!r} comes twice")
    samples: list[Sample] = []
    for number, line in lines[1:]:
        cells = line.split("\t")
        if len(cells) != len(names):
            raise RequestError(f"line {number}: {len(cells)} cells, expected {len(names)}")
        split = {n: cell.split(",") if cell.strip() else [] for n, cell in zip(names, cells)}  # noqa: B905 - lengths were compared
        inputs = {n: [_number(number, n, part) for part in parts] for n, parts in split.items()}
        samples.append(LineSample(number, inputs))
    return samples


def _lines(text: str) -> list[tuple[int, str]]:
    return [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _number(line: int, name: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise RequestError(f"line {line}, {name!r}: {text!r} is not a number")


def batch_samples(spec: ModelSpec, samples: Sequence[Sample]) -> dict[str, NDArray[np.generic]]:
    """Samples as one request: inputs by name.

    Args:
        spec: the model.
        samples: at least one.

    Returns:
        Dense inputs fp32 `[B, width]`; of each feature that a sample names, ids int64 `[N]` and
        `<feature>.lengths` int32 `[B]`.

    Raises:
        RequestError: no samples, an unknown name, or a value that is not ids or numbers; names
            the sample and the input.
    """
    if not samples:
        raise RequestError("the input holds no samples")
    features = {feature.name for feature in spec.features}
    for number, sample in enumerate(samples):
        if unknown := sorted(set(sample) - features - set(spec.dense.inputs)):
            where = place_of(number, sample)
            raise RequestError(f"{where}: {unknown[0]!r} is not one of the model's inputs")
    inputs: dict[str, NDArray[np.generic]] = {}
    for name, width in spec.dense.inputs.items():
        rows = [_dense(number, name, s, width) for number, s in enumerate(samples)]
        inputs[name] = np.array(rows, np.float32)
    for name in features & {name for sample in samples for name in sample}:
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
            f"{place_of(number, sample)}, {name!r}: expected {width} numbers, got {value!r:.80}"
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


def has_labels(spec: ModelSpec, samples: Sequence[Sample]) -> bool:
    """Whether samples say what happened, beside the model's inputs."""
    inputs = {feature.name for feature in spec.features} | set(spec.dense.inputs)
    return LABEL not in inputs and any(LABEL in sample for sample in samples)


def without_labels(spec: ModelSpec, samples: Sequence[Sample]) -> list[Sample]:
    """Samples as the model takes them."""
    if not has_labels(spec, samples):
        return list(samples)
    return [_without_label(sample) for sample in samples]


def _without_label(sample: Sample) -> Sample:
    inputs = {k: v for k, v in sample.items() if k != LABEL}
    return LineSample(sample.line, inputs) if isinstance(sample, LineSample) else inputs
