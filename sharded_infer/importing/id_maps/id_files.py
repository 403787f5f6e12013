"""Files of ids and their rows: `.npy`, `.npz`, `.safetensors`, Parquet, vocabularies."""

import importlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from kernels.wording import did_you_mean
from quant.sources.checkpoint import open_weights
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource
from sharded_infer.importing.id_maps.stored_ids import (
    CHUNK,
    as_ids,
    by_position,
    check_column,
    chunks_of,
    counts_by_position,
    read_column,
)
from sharded_infer.importing.id_maps.vocabulary import open_vocabulary

_PARQUET = (".parquet", ".pq")
_BUFFER = 2**20  # bytes of a column that are read at once
_ARRAYS = (".npz", ".safetensors")


def open_id_file(
    path: Path | str,
    ids: str = "id",
    rows: str = "row",
    *,
    frequencies: str = "frequency",
    strings: Literal["xxh3_64", "murmur3_x64_128"] | None = None,
    seed: int = 0,
) -> IdMapSource:
    """Open a file of ids and rows, or a vocabulary.

    Args:
        path: `.parquet`, `.npz` or `.safetensors` with integer columns `[N]`; `.npy` with ids
            `[N]`, or ids and rows `[N, 2]`; or `.txt` with strings, as in `open_vocabulary`.
        ids: the column of ids; uint64 is taken bit for bit.
        rows: the column of rows. Without it, an id's row is its position.
        frequencies: the column of each id's use count; it may be missing.
        strings: the hash function of a vocabulary's strings; `seed` is its seed.

    Raises:
        WeightsError: the file is unreadable or of another kind; names the column.
    """
    path = Path(path)
    try:
        open_regular(path, follow=True).close()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.suffix == ".txt":
        # A missing hash function is refused there.
        return open_vocabulary(path, cast(Any, strings), seed)
    if path.suffix in _PARQUET:
        return _parquet(path, ids, rows, frequencies)
    if path.suffix not in (*_ARRAYS, ".npy"):
        expected = ", ".join((*_PARQUET, *_ARRAYS, ".npy", ".txt"))
        raise WeightsError(f"{path}: expected a file of ids, {expected}; got {path.suffix!r}")
    try:
        source = open_weights(path)
    except SourceError as error:
        raise WeightsError(str(error)) from error
    if path.suffix == ".npy":
        return _npy(source)
    names = list(source.keys())
    _check_name(path, ids, names)
    count, has_rows = check_column(source, ids), rows in names
    read, counted = partial(by_position, source, ids, count), None
    if has_rows:
        check_column(source, rows, count)
        read = partial(_pairs, source, ids, rows, count)
    if frequencies in names:
        check_column(source, frequencies, count)
        counted = partial(counts_by_position, source, frequencies, count)
        if has_rows:
            counted = partial(_pairs, source, rows, frequencies, count)
    return IdMapSource(str(path), count, read, frequencies=counted)


def _npy(source: WeightSource) -> IdMapSource:
    (key,) = source.keys()
    shape = source.shape(key)
    if len(shape) != 2 or shape[1] != 2:
        count = check_column(source, key)
        return IdMapSource(source.description, count, lambda: by_position(source, key, count))
    dtype = source.read(key, 0, 0).numpy().dtype
    if dtype.kind not in "iu":
        raise WeightsError(f"{source.description}: expected whole numbers, got {dtype}")

    def read() -> Iterator[Chunk]:
        for start, stop in chunks_of(shape[0]):
            pairs = as_ids(source.read(key, start, stop).numpy())
            yield pairs[:, 0].copy(), pairs[:, 1].copy()

    return IdMapSource(source.description, shape[0], read)


def _pairs(source: WeightSource, ids: str, rows: str, count: int) -> Iterator[Chunk]:
    for start, stop in chunks_of(count):
        yield read_column(source, ids, start, stop), read_column(source, rows, start, stop)


def _parquet(path: Path, ids: str, rows: str, frequencies: str) -> IdMapSource:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise WeightsError(
            f"{path}: Parquet needs pyarrow: pip install 'sharded-infer[parquet]'"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            kinds = {field.name: str(field.type) for field in file.schema_arrow}
            count = file.metadata.num_rows
    # pyarrow's own errors derive from ValueError, KeyError and others.
    except Exception as error:
        raise WeightsError(f"{path}: not Parquet: {error!s:.200}") from error
    _check_name(path, ids, list(kinds))
    of_rows = [rows] if rows in kinds else []
    of_counts = [frequencies] if frequencies in kinds else []
    for name in (ids, *of_rows, *of_counts):
        if names.count(name) > 1:
            raise WeightsError(f"{path}: holds two columns {name!r}")
        if not kinds[name].removeprefix("u").startswith("int"):
            raise WeightsError(f"{path}: {name!r}: expected whole numbers, got {kinds[name][:100]}")
    read = partial(_parquet_chunks, path, parquet)

    def counted() -> Iterator[Chunk]:
        for one, other in read([*of_rows, *of_counts]):
            yield (one, other) if of_rows else (other, one)

    return IdMapSource(
        str(path),
        count,
        partial(read, [ids, *of_rows]),
        frequencies=counted if of_counts else None,
    )


def _parquet_chunks(path: Path, parquet: Any, columns: list[str]) -> Iterator[Chunk]:
    """Chunks of one or two columns; with one, the second is each number's position."""
    start = 0
    try:
        # By default it reads whole columns of a row group at once.
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            for batch in file.iter_batches(batch_size=CHUNK, columns=columns):
                found = []
                for name in columns:
                    column = batch.column(name)
                    if column.null_count:
                        raise WeightsError(
                            f"{path}: {name!r}: expected a number in each row, got none in "
                            f"{column.null_count} of rows {start} to {start + len(column)}"
                        )
                    found.append(as_ids(column.to_numpy()))
                stop = start + len(found[0])
                yield found[0], found[1] if len(found) > 1 else np.arange(start, stop)
                start = stop
    except WeightsError:
        raise
    except Exception as error:
        raise WeightsError(f"{path}: cannot be read at row {start}: {error!s:.200}") from error


def _check_name(path: Path, name: str, names: list[str]) -> None:
    if name not in names:
        shown = ", ".join(repr(other[:100]) for other in sorted(names)[:8])
        raise WeightsError(
            f"{path}: no column {name!r}, only {shown or 'none'}{did_you_mean(name, names)}"
        )
