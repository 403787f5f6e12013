"""Recordings of servers as samples: `model=NAME/version=N/hour=TIME/*.parquet`.

`serving/recording/record_table.py` has the columns.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from kernels.wording import listed
from sharded_infer.errors import InputError
from sharded_infer.inputs.columns import Columns, columns_of
from sharded_infer.samples.parquet import read_parquet

# Key of the schema's metadata: JSON, numbers in a row of each dense input.
WIDTHS = b"sharded_infer.widths"
_HOUR = "%Y-%m-%dT%H"
_INPUT, _OUTPUT, _LENGTHS, _WEIGHTS = "in.", "out.", ".lengths", ".weights"


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of recorded requests of one version, of one hour."""

    path: Path
    model: str
    version: int
    hour: datetime


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it was sent, and its answer.

    Attributes:
        inputs: as `make_input` takes them: int64 ids, fp32 numbers, and int32 `NAME.lengths`; one
            row or bag, of several samples, is all samples'.
        status: OK, or the name of a status code.
        scores: fp32 `[samples]` or `[samples, K]` by output; empty if it failed.
        seconds: `time` since 1970, then durations: `decode`, `queue`, `lookup`, `tower`.
    """

    request_id: str
    model: str
    version: int
    samples: int
    status: str
    inputs: dict[str, NDArray[Any]]
    scores: dict[str, NDArray[np.float32]]
    seconds: dict[str, float]


def is_record(path: Path) -> bool:
    """True if a folder holds a recording."""
    return path.is_dir() and any(path.glob("model=*/version=*"))


def listed_files(record: Path, model: str | None = None) -> list[RecordFile]:
    """Files of a recording, by model, version and time.

    Raises InputError for no folder, or if there are several models and none is named.
    """
    if not record.is_dir():
        raise InputError(f"{record}: expected a folder that a server recorded in")
    files = [
        RecordFile(path, unquote(model_of), int(version_of), _hour(hour))
        for path in sorted(record.glob("model=*/version=*/hour=*/*.parquet"))
        for model_of, version_of, hour in [_parts(path)]
        if not path.name.startswith(".")
    ]
    models = sorted({file.model for file in files})
    if model is None and len(models) > 1:
        raise InputError(f"{record}: a recording of {listed(models)}: name one of these models")
    return [file for file in files if model in (None, file.model)]


def record_files(record: Path, model: str | None = None) -> list[RecordFile]:
    """Files of a recording; InputError as `listed_files`, and if there are none."""
    files = listed_files(record, model)
    if not files:
        of = f" of model {model!r}" if model is not None else ""
        raise InputError(f"{record}: no recorded requests{of}")
    return files


def recorded_requests(files: Sequence[RecordFile]) -> Iterator[RecordedRequest]:
    """Requests of some files; InputError if pyarrow is missing or a file is unreadable."""
    for file in files:
        table = read_parquet(file.path)
        widths = json.loads((table.schema.metadata or {}).get(WIDTHS, b"{}"))
        columns = {name: _cells(table, name) for name in table.column_names}
        for row in range(table.num_rows):
            samples = int(columns["samples"][row])
            yield RecordedRequest(
                columns["request_id"][row],
                file.model,
                file.version,
                samples,
                columns["status"][row],
                _inputs(columns, row, widths),
                {
                    name.removeprefix(_OUTPUT): _rows(cells[row], samples)
                    for name, cells in columns.items()
                    if name.startswith(_OUTPUT) and len(cells[row])
                },
                {
                    "time": columns["time"][row],
                    **{
                        name: float(columns[f"{name}_seconds"][row])
                        for name in ("decode", "queue", "lookup", "tower")
                    },
                },
            )


def recorded_samples(record: Path, model: str | None = None) -> Columns:
    """Samples of the answered requests of a recording, an input of a request at each.

    Raises InputError as `record_files` and `recorded_requests`.
    """
    columns: dict[str, list[Any]] = {}
    for request in recorded_requests(record_files(record, model)):
        if request.status != "OK":
            continue
        count = len(next(iter(columns.values()), []))
        for name, cells in sample_cells(request).items():
            # An input that requests before did not have.
            columns.setdefault(name, [None] * count).extend(cells)
        for cells in columns.values():
            cells += [None] * (count + request.samples - len(cells))
    for name, cells in columns.items():
        if name.endswith(_WEIGHTS):
            owners = columns[name.removesuffix(_WEIGHTS)]
            columns[name] = [
                [1.0] * len(ids or ()) if weights is None else weights
                for weights, ids in zip(cells, owners, strict=True)
            ]
    return columns_of(columns)


def sample_cells(request: RecordedRequest) -> dict[str, list[Any]]:
    """By input, a list for each sample."""
    cells: dict[str, list[Any]] = {}
    for name, numbers in request.inputs.items():
        if name.endswith(_LENGTHS) and name.removesuffix(_LENGTHS) in request.inputs:
            continue
        owner = name.removesuffix(_WEIGHTS)
        lengths = request.inputs.get(f"{owner}{_LENGTHS}")
        if lengths is None:
            rows = [row.tolist() for row in numbers]
        else:
            ends = np.cumsum(lengths)
            rows = [
                numbers[end - length : end].tolist()
                for end, length in zip(ends, lengths, strict=True)
            ]
        cells[name] = rows * request.samples if len(rows) < request.samples else rows
    return cells


def _parts(path: Path) -> tuple[str, str, str]:
    model, version, hour = (part.partition("=")[2] for part in path.parent.parts[-3:])
    return model, version, hour


def _cells(table: Any, name: str) -> Any:
    """A column's values by row: arrays of lists, numbers or texts."""
    column = table.column(name).combine_chunks()
    if name == "time":
        return [time.timestamp() for time in column.to_pylist()]
    if not name.startswith((_INPUT, _OUTPUT)):
        return column.to_pylist()
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy(zero_copy_only=False)
    return [values[begin:end] for begin, end in pairwise(offsets.tolist())]


def _inputs(columns: dict[str, Any], row: int, widths: dict[str, int]) -> dict[str, NDArray[Any]]:
    found = {}
    for column, cells in columns.items():
        if not column.startswith(_INPUT):
            continue
        name = column.removeprefix(_INPUT)
        width = widths.get(name)
        owner = column.removesuffix(_WEIGHTS)
        # Without weights all are 1.
        if owner != column and len(cells[row]) != len(columns[owner][row]):
            continue
        found[name] = cells[row] if width is None else cells[row].reshape(-1, width)
    return found


def _rows(scores: NDArray[np.float32], samples: int) -> NDArray[np.float32]:
    return scores if len(scores) == samples else scores.reshape(samples, -1)


def _hour(text: str) -> datetime:
    return datetime.strptime(text, _HOUR).replace(tzinfo=UTC)
