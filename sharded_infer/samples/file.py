"""Files of samples, by their suffixes."""

import sys
from collections.abc import Container
from pathlib import Path

from sharded_infer.errors import InputError, ShardedInferError
from sharded_infer.files.regular_file import read_regular
from sharded_infer.inputs.columns import Columns, columns_of
from sharded_infer.samples.parquet import read_parquet
from sharded_infer.samples.record import is_record
from sharded_infer.samples.recorded_samples import recorded_samples
from sharded_infer.samples.text import read_csv, read_json, read_tsv

_TEXT = {".tsv": read_tsv, ".csv": read_csv}
MOST_BYTES = 8 * 2**30  # of text; more is for Parquet
_PARQUET = (".parquet", ".pq")


def read_samples(
    path: Path | str,
    *,
    tsv: bool = False,
    strings: Container[str] = (),
    model: str | None = None,
    rows: int | None = None,
) -> Columns:
    """Read a file of samples, or a recording.

    `.parquet` is Parquet, `.csv` CSV, `.tsv` (or any file with `tsv`) TSV, anything else JSON; `-`
    is standard input. `strings` are the columns of string ids, which CSV and TSV do not declare.
    Of a folder that a server recorded in, the answered requests of `model` are read, or `rows` of
    their samples, as `chosen_samples`.

    Raises:
        InputError: it is unreadable, or Parquet without pyarrow, or no recording with `rows`.
        RequestError: it does not hold samples; names the line or sample.
    """
    path = Path(path)
    if is_record(path):
        return recorded_samples(path, model, rows)
    if rows is not None:
        raise InputError(f"{path}: expected a recording, to choose samples of")
    if path.suffix in _PARQUET and not tsv:
        return _read_parquet(path)
    try:
        # Line ends unchanged: a quoted cell of CSV may hold some.
        text = sys.stdin.read() if str(path) == "-" else _read(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    read = read_tsv if tsv else _TEXT.get(path.suffix)
    return columns_of(read_json(text) if read is None else read(text, strings))


def _read(path: Path) -> str:
    return read_regular(path, MOST_BYTES, follow=True).decode("utf-8-sig")


def _read_parquet(path: Path) -> Columns:
    table = read_parquet(path)
    try:
        return columns_of(table)
    except ShardedInferError as error:
        raise InputError(f"{path}: {error}") from error
