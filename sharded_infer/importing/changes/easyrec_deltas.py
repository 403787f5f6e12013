"""TorchEasyRec's delta dumps: Parquet files of each rank, step by step.

Source: `tzrec/utils/delta_embedding_dump.py` and `quant_util.py` of TorchEasyRec. Columns read:
`global_step`, `table_fqn`, `key_id` and `embedding`: a list of fp32 numbers or, quantized, of row
bytes: one per number, then fp16 scale and fp16 offset. Our int8 rows start with these two.

Keys of tables with ZCH or dynamic embeddings are raw ids; all others are rows. An id evicted by ZCH
comes with the row of unknown ids, so these files remove no ids.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.row_format import HEADER_BYTES, RowFormat
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.changed_rows import (
    ChangedRows,
    Changes,
    check_changes,
    last_of_each,
)
from sharded_infer.importing.changes.parquet_rows import SUFFIXES, ParquetRows
from sharded_infer.importing.changes.written_files import written_names
from sharded_infer.importing.id_maps.id_map_source import Ids
from sharded_infer.importing.torchrec_names import table_of

_COLUMNS = ("global_step", "table_fqn", "key_id", "embedding")
_STEP = re.compile(r"step_\d{1,18}")
# One file of each rank of a step.
_RANK = re.compile(r"(?P<name>.+)_rank_(?P<rank>\d{1,6})_of_(?P<ranks>\d{1,6})\.parquet")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one table, the latest of a key last: fp32 `[N, dim]` or uint8 `[N, dim + 4]`."""

    steps: Ids
    keys: Ids
    rows: NDArray[Any]


def is_easyrec(path: Path) -> bool:
    """True if a Parquet file, or a folder's first one, is a delta dump of TorchEasyRec."""
    files = _files(path) if path.is_dir() else [path]
    first = next((file for file in files if file.suffix in SUFFIXES), None)
    return first is not None and set(_COLUMNS) <= ParquetRows(first).kinds.keys()


def open_easyrec_deltas(path: Path | str) -> Changes:
    """Read delta dumps of TorchEasyRec; the latest step of each key wins.

    `path` is a file, a folder `step_N` with the files of all ranks, or a folder of either. Changes
    are by the last component of `table_fqn`; quantized rows stay int8 as stored.

    Raises:
        WeightsError: a damaged file, other columns, a missing rank, or rows of one key that differ
            between ranks in one step; names the file or the table.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = _files(path)
        _check_ranks(files)
    if not files:
        raise WeightsError(f"{path}: holds no Parquet files of TorchEasyRec's delta dumps")
    found: dict[str, list[_Rows]] = {}
    for file in files:
        for fqn, rows in _read(ParquetRows(file)):
            found.setdefault(fqn, []).append(rows)
    changes: dict[str, ChangedRows] = {}
    for fqn, parts in found.items():
        table = table_of(fqn)
        if table in changes:
            raise WeightsError(f"{path}: two tables {table[:200]!r}, one of them {fqn[:200]!r}")
        changes[table] = _changed(f"{path}: table {table[:200]!r}", parts)
    return check_changes(changes, str(path))


def _files(folder: Path) -> list[Path]:
    files = []
    for name in written_names(folder):
        path = folder / name
        if _STEP.fullmatch(name) and path.is_dir():
            files += [path / inner for inner in written_names(path)]
        else:
            files.append(path)
    return files


def _check_ranks(files: Iterable[Path]) -> None:
    found: dict[tuple[Path, str, int], set[int]] = {}
    for file in files:
        match = _RANK.fullmatch(file.name)
        if match is not None:
            key = (file.parent, match["name"], int(match["ranks"]))
            found.setdefault(key, set()).add(int(match["rank"]))
    for (folder, name, ranks), there in found.items():
        missing = sorted(set(range(ranks)) - there)
        if missing:
            raise WeightsError(
                f"{folder / name}: expected the files of {ranks} ranks, got none of rank "
                f"{missing[0]}"
            )


def _read(file: ParquetRows) -> Iterable[tuple[str, _Rows]]:
    for batch in file.batches(_COLUMNS):
        steps = file.whole_numbers(batch, "global_step")
        keys = file.whole_numbers(batch, "key_id")
        which, names = file.texts(batch, "table_fqn")
        for number, fqn in enumerate(names):
            own = which == number
            if not own.any():
                continue
            yield fqn, _Rows(steps[own], keys[own], file.rows(batch, "embedding", own))


def _changed(where: str, parts: list[_Rows]) -> ChangedRows:
    forms = sorted({f"{part.rows.shape[1]} {part.rows.dtype}" for part in parts})
    if len(forms) > 1:
        raise WeightsError(f"{where}: expected rows of one form, got {' and '.join(forms[:4])}")
    steps = np.concatenate([part.steps for part in parts])
    keys = np.concatenate([part.keys for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    order = np.lexsort((steps, keys))
    steps, keys, rows = steps[order], keys[order], rows[order]
    again = (keys[1:] == keys[:-1]) & (steps[1:] == steps[:-1])
    bits = rows.view(np.uint8)
    differs = np.flatnonzero((bits[1:][again] != bits[:-1][again]).any(axis=1))
    if len(differs):
        first = np.flatnonzero(again)[differs[0]]
        raise WeightsError(
            f"{where}: key {keys[first]} has two different rows in step {steps[first]}"
        )
    last = last_of_each(keys)
    keys, rows = keys[last], rows[last]
    if rows.dtype != np.uint8:
        return ChangedRows(keys, torch.from_numpy(rows.astype(np.float32, copy=False)))
    if rows.shape[1] <= HEADER_BYTES:
        raise WeightsError(
            f"{where}: expected bytes of numbers and {HEADER_BYTES} more in each row, got "
            f"{rows.shape[1]}"
        )
    stored = np.roll(rows, HEADER_BYTES, axis=1)
    return ChangedRows(keys, stored=torch.from_numpy(stored), row_format=RowFormat.INT8)
