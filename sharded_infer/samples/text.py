"""Samples in text: JSON, TSV and CSV.

A sample names its features and dense inputs. JSON is one array of objects, or one object a line:

    {"dense": [0.5, 1.0], "C1": 7, "C2": [3, 1, 4]}

TSV and CSV have the names in their first line, and one or several ids or numbers in a cell. Several
are separated by commas, semicolons, bars or spaces, with or without brackets.

    dense<TAB>C1<TAB>C2             dense,C1,C2
    0.5,1.0<TAB>7<TAB>3,1,4         "0.5,1.0",7,3|1|4

An empty cell, or a missing feature, is an empty bag. String ids are strings in JSON; in TSV and CSV
the caller names their columns.
"""

import csv
import io
import json
import re
from collections.abc import Container

from kernels.wording import counted
from sharded_infer.errors import RequestError
from sharded_infer.inputs.columns import LineSample, Sample
from sharded_infer.repeats import repeated

_BETWEEN = re.compile(r"[\s,;|]+")


def read_json(text: str) -> list[Sample]:
    """Read samples from JSON; RequestError naming the line or the sample."""
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


def read_tsv(text: str, strings: Container[str] = ()) -> list[Sample]:
    """Read samples from TSV; `strings` are the columns of string ids.

    Raises RequestError, naming the line, if its number of cells differs from the first line's, or a
    name is repeated.
    """
    return _read_cells([(number, line.split("\t")) for number, line in _lines(text)], strings)


def read_csv(text: str, strings: Container[str] = ()) -> list[Sample]:
    """Read samples from CSV (RFC 4180, quoted cells); arguments and errors as `read_tsv`."""
    reader = csv.reader(io.StringIO(text), strict=True)
    lines: list[tuple[int, list[str]]] = []
    begin = 1
    try:
        for cells in reader:
            # A quoted cell may hold line ends: a sample is named by its first line.
            if any(cell.strip() for cell in cells):
                lines.append((begin, cells))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise RequestError(f"line {begin}: not CSV: {error}") from error
    return _read_cells(lines, strings)


def _read_cells(lines: list[tuple[int, list[str]]], strings: Container[str]) -> list[Sample]:
    if not lines:
        raise RequestError("the input is empty: expected a line of names, then a line a sample")
    first, names = lines[0][0], [name.strip() for name in lines[0][1]]
    if twice := repeated(names):
        raise RequestError(f"line {first}: {twice[0]!r} comes twice")
    samples: list[Sample] = []
    for number, cells in lines[1:]:
        if len(cells) != len(names):
            raise RequestError(
                f"line {number}: {counted(len(cells), 'cell')}, expected {len(names)}"
            )
        inputs: dict[str, object] = {
            name: _parts(cell) if name in strings else _numbers(number, name, cell)
            for name, cell in zip(names, cells)  # noqa: B905 - compared
        }
        samples.append(LineSample(number, inputs))
    return samples


def _numbers(line: int, name: str, cell: str) -> list[int | float]:
    return [_number(line, name, part) for part in _parts(cell)]


def _parts(cell: str) -> list[str]:
    cell = cell.strip()
    if cell.startswith("[") and cell.endswith("]"):
        cell = cell[1:-1].strip()
    return _BETWEEN.split(cell) if cell else []


def _lines(text: str) -> list[tuple[int, str]]:
    return [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _number(line: int, name: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise RequestError(f"line {line}, {name!r}: {text!r} is not a number")
