"""Recordings of servers as samples: `model=NAME/version=N/hour=TIME/*.parquet`.

`serving/recording/record_table.py` has the columns.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from kernels.wording import listed
from sharded_infer.errors import InputError
from sharded_infer.repositories.storage.object_store import ObjectStore
from sharded_infer.samples.parquet import read_parquet

# Key of the schema's metadata: JSON, numbers in a row of each dense input.
WIDTHS = b"sharded_infer.widths"
_MOST_FILE_BYTES = 2**30
_HOUR = "%Y-%m-%dT%H"
LENGTHS, WEIGHTS = ".lengths", ".weights"
_INPUT, _OUTPUT = "in.", "out."


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
        ids_outside: unknown ids, or outside of their tables.
        has_defaults: default rows of lost shard hosts took part in the scores.
        status: OK, or the name of a status code.
        scores: fp32 `[samples]` or `[samples, K]` by output; empty if it failed.
        seconds: `time` since 1970, then durations: `decode`, `queue`, `lookup`, `tower`.
    """

    request_id: str
    model: str
    version: int
    samples: int
    ids_outside: int
    has_defaults: bool
    status: str
    inputs: dict[str, NDArray[Any]]
    scores: dict[str, NDArray[np.float32]]
    seconds: dict[str, float]

    @property
    def is_scored(self) -> bool:
        """True if it was answered with its own scores, without default rows."""
        return self.status == "OK" and not self.has_defaults

    @property
    def server_seconds(self) -> float:
        """Time in the server."""
        return sum(value for name, value in self.seconds.items() if name != "time")


@contextmanager
def local_record(
    location: str, model: str | None = None, latest: int | None = None
) -> Iterator[Path]:
    """A recording as a folder: that of a URL is fetched, the files of `model` or of all models.

    Of a URL, `latest` files are fetched; None: all.

    Raises InputError for an unknown file system, StorageError if the store cannot be read.
    """
    if "://" not in location:
        yield Path(location)
        return
    store = ObjectStore(location)
    models = "model=*" if model is None else f"model={quote(model, safe='')}"
    with TemporaryDirectory(prefix="sharded-infer-record-") as folder:
        keys = list(_keys(store, (models, "version=*", "hour=*", "*.parquet")))
        for key in sorted(keys, key=lambda key: key.split("/")[2])[-(latest or 0) :]:
            path = Path(folder, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.read_range(key, 0, _MOST_FILE_BYTES))
        yield Path(folder)


def _keys(store: ObjectStore, patterns: Sequence[str], folder: str = "") -> Iterator[str]:
    """Keys of objects, each part of which fits its pattern."""
    for entry in store.entries(folder):
        if fnmatchcase(entry.name, patterns[0]):
            key = f"{folder}/{entry.name}".removeprefix("/")
            if len(patterns) > 1:
                yield from _keys(store, patterns[1:], key)
            else:
                yield key


def is_record(path: Path) -> bool:
    """True if a folder holds a recording."""
    return path.is_dir() and any(path.glob("model=*/version=*"))


def listed_files(record: Path, model: str | None = None) -> list[RecordFile]:
    """Files of a recording, by model, version and time.

    Raises InputError for no folder, other names in it, or several models of which none is named.
    """
    if not record.is_dir():
        raise InputError(f"{record}: expected a folder that a server recorded in")
    paths = sorted(record.glob("model=*/version=*/hour=*/*.parquet"))
    files = [_file(path) for path in paths if not path.name.startswith(".")]
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
    """Requests of some files.

    Raises InputError if pyarrow is missing, or a file is unreadable or no recording.
    """
    for file in files:
        table = read_parquet(file.path)
        try:
            yield from _requests(file, table)
        # Columns that are missing, of other types, or do not fit each other.
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            NotImplementedError,
            TypeError,
            ValueError,
        ) as error:
            raise InputError(
                f"{file.path}: expected recorded requests: {type(error).__name__}: {error!s:.200}"
            ) from error


def _requests(file: RecordFile, table: Any) -> Iterator[RecordedRequest]:
    widths = json.loads((table.schema.metadata or {}).get(WIDTHS, b"{}"))
    columns = {name: _cells(table, name) for name in table.column_names}
    for row in range(table.num_rows):
        if (samples := int(columns["samples"][row])) < 1:
            raise ValueError(f"samples: expected at least 1, got {samples}")
        yield RecordedRequest(
            str(columns["request_id"][row]),
            file.model,
            file.version,
            samples,
            int(columns["ids_outside"][row]),
            bool(columns["has_defaults"][row]),
            str(columns["status"][row]),
            _inputs(columns, row, widths, samples),
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


def _file(path: Path) -> RecordFile:
    model, version, hour = (part.partition("=")[2] for part in path.parent.parts[-3:])
    try:
        began = datetime.strptime(hour, _HOUR).replace(tzinfo=UTC)
        return RecordFile(path, unquote(model), int(version), began)
    except ValueError as error:
        raise InputError(
            f"{path.parent}: expected model=NAME/version=N/hour=YYYY-MM-DDTHH"
        ) from error


def _cells(table: Any, name: str) -> Any:
    """A column's values by row: arrays of lists, numbers or texts."""
    column = table.column(name).combine_chunks()
    if name == "time":
        return [time.timestamp() for time in column.to_pylist()]
    if not name.startswith((_INPUT, _OUTPUT)):
        return column.to_pylist()
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "if":
        raise TypeError(f"{name}: expected numbers, got {column.values.type}")
    return [values[begin:end] for begin, end in pairwise(offsets.tolist())]


def _inputs(
    columns: dict[str, Any], row: int, widths: dict[str, int], samples: int
) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for column, cells in columns.items():
        if not column.startswith(_INPUT):
            continue
        name = column.removeprefix(_INPUT)
        width = widths.get(name)
        owner = column.removesuffix(WEIGHTS)
        # Without weights all are 1.
        if owner != column and len(cells[row]) != len(columns[owner][row]):
            continue
        found[name] = cells[row] if width is None else cells[row].reshape(-1, width)
    for name, numbers in found.items():
        if name.endswith(WEIGHTS):
            continue
        lengths = found.get(f"{name}{LENGTHS}")
        # Of one bag or row, or of one for each sample.
        rows = len(numbers if lengths is None else lengths)
        fits = lengths is None or (lengths.sum() == len(numbers) and lengths.min(initial=0) >= 0)
        if rows not in {1, samples} or not fits:
            raise ValueError(f"{_INPUT}{name}: expected bags or rows of 1 or {samples} samples")
    return found


def _rows(scores: NDArray[np.float32], samples: int) -> NDArray[np.float32]:
    return scores if len(scores) == samples else scores.reshape(samples, -1)
