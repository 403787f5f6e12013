"""Samples in files that people write: JSON and TSV.

A sample names its features and dense inputs. JSON is one array of objects, or one object a line:

    {"dense": [0.5, 1.0], "C1": 7, "C2": [3, 1, 4]}

TSV has the names in its first line, and ids or numbers joined by commas in its cells:

    dense<TAB>C1<TAB>C2
    0.5,1.0<TAB>7<TAB>3,1,4

An empty cell, or a feature that a sample leaves out, is an empty bag.
"""

import json
import sys
from pathlib import Path

from kernels.wording import counted
from sharded_infer.errors import InputError, RequestError
from sharded_infer.repeats import repeated
from sharded_infer.samples.sample import LineSample, Sample


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
    if twice := repeated(names):
        raise RequestError(f"line {lines[0][0]}: {twice[0]!r} comes twice")
    samples: list[Sample] = []
    for number, line in lines[1:]:
        cells = line.split("\t")
        if len(cells) != len(names):
            raise RequestError(
                f"line {number}: {counted(len(cells), 'cell')}, expected {len(names)}"
            )
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
