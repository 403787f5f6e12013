"""Files of changed rows: `.safetensors`, `.npz`, Parquet, and folders of such files.

| file | holds of each table |
| --- | --- |
| arrays | `<table>.ids`; `<table>.values` or `<table>.<format>`; `<table>.removed` |
| Parquet | rows with `table`, `id` and `values`; `removed`, if ids are removed |

Arrays are those of a `.safetensors` or `.npz` file. `<table>.int8` and its like are rows as they
are stored. Parquet with the columns of TorchEasyRec's delta dumps is read as such.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.row_format import RowFormat
from kernels.wording import counted
from quant.sources.checkpoint import open_weights
from quant.sources.table_weight import FLOATING
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.importing.changes.changed_rows import (
    ChangedRows,
    Changes,
    check_changes,
    joined,
)
from sharded_infer.importing.changes.easyrec_deltas import is_easyrec, open_easyrec_deltas
from sharded_infer.importing.changes.parquet_rows import SUFFIXES, ParquetRows
from sharded_infer.importing.changes.written_files import written_names
from sharded_infer.importing.id_maps.id_map_source import Ids
from sharded_infer.importing.id_maps.stored_ids import check_column, read_column

_ARRAYS = (".safetensors", ".npz")
_FORMATS = {str(row_format): row_format for row_format in RowFormat}


def open_changes(path: Path | str, *, table: str | None = None) -> Changes:
    """Read changed rows from a file, or from all files of a folder.

    The files of a folder are shards of one change, for example one per rank. Files still being
    written (names that start with a dot or end in `.tmp` or `.partial`) are skipped.

    Args:
        path: `.safetensors`, `.npz` or Parquet (see docs/releases.md), or a folder of such files.
        table: the table of a Parquet file without a `table` column.

    Raises:
        WeightsError: an unreadable or inconsistent file; names file, table and column.
    """
    path = Path(path)
    if not path.is_dir():
        return _of_file(path, table)
    if is_easyrec(path):
        return _easyrec(path, table)
    files = [path / name for name in written_names(path)]
    if not files:
        raise WeightsError(f"{path}: holds no files of changed rows")
    return joined({str(file): _of_file(file, table) for file in files})


def _of_file(path: Path, table: str | None) -> Changes:
    try:
        open_regular(path, follow=True).close()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.suffix in SUFFIXES:
        if is_easyrec(path):
            return _easyrec(path, table)
        return check_changes(_parquet(ParquetRows(path), table), str(path))
    if path.suffix not in _ARRAYS:
        expected = ", ".join((*_ARRAYS, *SUFFIXES))
        raise WeightsError(
            f"{path}: expected a file of changed rows, {expected}; got {path.suffix!r}"
        )
    _check_no_table(path, table)
    try:
        return check_changes(_arrays(open_weights(path)), str(path))
    except SourceError as error:
        raise WeightsError(str(error)) from error


def _easyrec(path: Path, table: str | None) -> Changes:
    _check_no_table(path, table)
    return open_easyrec_deltas(path)


def _check_no_table(path: Path, table: str | None) -> None:
    if table is not None:
        raise WeightsError(f"{path}: names its tables itself, expected no table, got {table!r}")


def _arrays(source: WeightSource) -> Changes:
    found: dict[str, dict[str, str]] = {}
    for key in sorted(source.keys()):
        name, _, part = key.rpartition(".")
        if not name or part not in ("ids", "values", "removed", *_FORMATS):
            raise WeightsError(
                f"{source.description}: {key[:200]!r}: expected <table>.ids, <table>.values, "
                "<table>.removed, or rows as they are stored under <table>.<format>"
            )
        found.setdefault(name, {})[part] = key
    return {table: _table(source, table, keys) for table, keys in found.items()}


def _table(source: WeightSource, table: str, keys: dict[str, str]) -> ChangedRows:
    rows = sorted(keys.keys() - {"ids", "removed"})
    if len(rows) > 1 or bool(rows) != ("ids" in keys):
        raise WeightsError(
            f"{source.description}: table {table[:200]!r}: expected ids with one kind of rows, got "
            f"{', '.join(sorted(keys))}"
        )
    removed = _column(source, keys["removed"]) if "removed" in keys else np.empty(0, np.int64)
    if not rows:
        return ChangedRows(np.empty(0, np.int64), removed=removed)
    ids, kind = _column(source, keys["ids"]), rows[0]
    tensor = _rows(source, keys[kind], len(ids), (torch.uint8,) if kind in _FORMATS else FLOATING)
    if kind in _FORMATS:
        return ChangedRows(ids, stored=tensor, row_format=_FORMATS[kind], removed=removed)
    return ChangedRows(ids, tensor.to(torch.float32), removed=removed)


def _column(source: WeightSource, key: str) -> Ids:
    # A copy: the mapping is valid only while the file is open.
    return read_column(source, key, 0, check_column(source, key)).copy()


def _rows(source: WeightSource, key: str, count: int, dtypes: Sequence[torch.dtype]) -> Tensor:
    shape = source.shape(key)
    dtype = source.read(key, 0, 0).dtype if shape else None
    if len(shape) != 2 or shape[0] != count or dtype not in dtypes:
        raise WeightsError(
            f"{source.description}: {key!r}: expected {counted(count, 'row')}, one for each id, of "
            f"{' or '.join(map(str, dtypes))}, got {list(shape)} {dtype}"
        )
    return source.read(key, 0, count).clone()


def _parquet(file: ParquetRows, table: str | None) -> Changes:
    if ("table" in file.kinds) != (table is None):
        raise WeightsError(
            f"{file.path}: expected a column 'table', or a table for all rows; got "
            + ("neither" if table is None else f"a column and {table!r}")
        )
    parts: dict[str, list[_Part]] = {}
    columns = ["id", "values", *(name for name in ("table", "removed") if name in file.kinds)]
    for batch in file.batches(columns):
        ids = file.whole_numbers(batch, "id")
        gone = np.zeros(len(ids), bool)
        if "removed" in columns:
            gone = file.flags(batch, "removed")
        which, names = np.zeros(len(ids), np.int32), [table or ""]
        if table is None:
            which, names = file.texts(batch, "table")
        for number, name in enumerate(names):
            own = which == number
            if not own.any():
                continue
            changed = own & ~gone
            rows = file.rows(batch, "values", changed)
            parts.setdefault(name, []).append((ids[changed], rows, ids[own & gone]))
    return {name: _joined_parts(file, name, those) for name, those in parts.items()}


# Row ids, rows, and removed ids.
_Part = tuple[Ids, NDArray[Any], Ids]


def _joined_parts(file: ParquetRows, table: str, parts: list[_Part]) -> ChangedRows:
    removed = np.concatenate([gone for _, _, gone in parts])
    with_rows = [(ids, rows) for ids, rows, _ in parts if len(ids)]
    if not with_rows:
        return ChangedRows(np.empty(0, np.int64), removed=removed)
    widths = sorted({rows.shape[1] for _, rows in with_rows})
    if len(widths) > 1 or with_rows[0][1].dtype == np.uint8:
        raise WeightsError(
            f"{file.path}: table {table[:200]!r}: expected floating numbers, as many in each row, "
            f"got rows of {' and '.join(map(str, widths[:4]))} {with_rows[0][1].dtype}"
        )
    values = np.concatenate([rows for _, rows in with_rows]).astype(np.float32, copy=False)
    ids = np.concatenate([ids for ids, _ in with_rows])
    return ChangedRows(ids, torch.from_numpy(values), removed=removed)
