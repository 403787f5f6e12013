"""Files of Parquet, which take pyarrow."""

import importlib
from pathlib import Path
from typing import Any

from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import open_regular


def parquet_module(named: str) -> Any:
    """`pyarrow.parquet`; InputError, which begins with what needs it, if it is not installed."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            f"{named}: Parquet needs pyarrow: pip install 'sharded-infer[parquet]'"
        ) from error


def read_parquet(path: Path) -> Any:
    """A file as a table of pyarrow; InputError if that is missing, or the file unreadable."""
    parquet = parquet_module(str(path))
    try:
        # One file, not a folder's data set: `partitioning` would add columns from its path.
        open_regular(path, follow=True).close()
        with parquet.ParquetFile(path) as file:
            # A server forks after it has read recorded requests.
            return file.read(use_threads=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        # pyarrow's own errors derive from ValueError, KeyError and others.
        raise InputError(f"{path}: not Parquet: {error!s:.200}") from error
