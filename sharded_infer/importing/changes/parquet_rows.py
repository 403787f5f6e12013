"""Checked columns of ids and rows in a Parquet file, read in batches."""

import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import WeightsError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.importing.id_maps.id_map_source import Ids
from sharded_infer.importing.id_maps.stored_ids import as_ids

SUFFIXES = (".parquet", ".pq")
_BATCH_ROWS = 2**16
_STRINGS = re.compile(r"(dictionary<values=)?(large_)?string(,.*|$)")


class ParquetRows:
    """A Parquet file of ids and their rows; requires pyarrow."""

    def __init__(self, path: Path) -> None:
        """Read the schema; WeightsError if unreadable, not Parquet, or pyarrow is missing."""
        self.path = path
        try:
            self._parquet: Any = importlib.import_module("pyarrow.parquet")
            self._compute: Any = importlib.import_module("pyarrow.compute")
        except ImportError as error:
            raise WeightsError(
                f"{path}: Parquet needs pyarrow: pip install 'sharded-infer[parquet]'"
            ) from error
        try:
            with open_regular(path, follow=True) as file, self._parquet.ParquetFile(file) as opened:
                self.kinds = {field.name: str(field.type) for field in opened.schema_arrow}
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
        # pyarrow's own errors derive from ValueError, KeyError and others.
        except Exception as error:
            raise WeightsError(f"{path}: not Parquet: {error!s:.200}") from error

    def batches(self, columns: Iterable[str]) -> Iterator[Any]:
        """Yield pyarrow batches of these columns; WeightsError if one is missing or unreadable."""
        wanted = list(columns)
        for name in wanted:
            if name not in self.kinds:
                shown = ", ".join(repr(other[:100]) for other in sorted(self.kinds)[:8])
                raise WeightsError(f"{self.path}: no column {name!r}, only {shown or 'none'}")
        row = 0
        try:
            with open_regular(self.path, follow=True) as file, self._parquet.ParquetFile(file) as o:
                for batch in o.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                    for name in wanted:
                        # In an altered file, lists or strings may end outside their buffers.
                        batch.column(name).validate(full=True)
                    row += batch.num_rows
                    yield batch
        except WeightsError:
            raise
        except Exception as error:
            raise WeightsError(
                f"{self.path}: cannot be read at row {row}: {error!s:.200}"
            ) from error

    def whole_numbers(self, batch: Any, name: str) -> Ids:
        """An integer column as int64 `[N]`; uint64 bit for bit."""
        kind = self.kinds[name]
        if not kind.removeprefix("u").startswith("int"):
            raise WeightsError(f"{self.path}: {name!r}: expected whole numbers, got {kind[:100]}")
        return as_ids(self._filled(batch, name).to_numpy())

    def texts(self, batch: Any, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A string column: each row's index into the list of distinct strings."""
        kind = self.kinds[name]
        column = self._filled(batch, name)
        if not _STRINGS.match(kind):
            raise WeightsError(f"{self.path}: {name!r}: expected strings, got {kind[:100]}")
        if not kind.startswith("dictionary"):
            column = column.dictionary_encode()
        texts: list[str] = column.dictionary.to_pylist()
        return column.indices.to_numpy().astype(np.int32), texts

    def flags(self, batch: Any, name: str) -> NDArray[np.bool_]:
        """A column of booleans `[N]`."""
        if self.kinds[name] != "bool":
            raise WeightsError(
                f"{self.path}: {name!r}: expected booleans, got {self.kinds[name][:100]}"
            )
        flags: NDArray[np.bool_] = self._filled(batch, name).to_numpy(zero_copy_only=False)
        return flags

    def rows(self, batch: Any, name: str, chosen: NDArray[np.bool_]) -> NDArray[np.generic]:
        """The `chosen` (bool `[N]`) rows of a column of lists: `[M, width]` in the file's dtype.

        `[0, 0]` if no row is chosen. Raises WeightsError unless it holds equally long lists of
        numbers.
        """
        where = f"{self.path}: {name!r}"
        column = batch.column(name)
        if not hasattr(column, "flatten") or "list<" not in self.kinds[name]:
            raise WeightsError(
                f"{where}: expected a list of numbers in each row, got {self.kinds[name][:100]}"
            )
        if not chosen.all():
            column = column.filter(self._mask(chosen))
        numbers = column.flatten()
        lengths = self._compute.list_value_length(column)
        if column.null_count or numbers.null_count:
            raise WeightsError(f"{where}: expected numbers in each row, got none in some")
        if not len(column):
            return np.empty((0, 0), np.float32)
        held = lengths.to_numpy()
        if held.min() != held.max() or not held[0]:
            raise WeightsError(
                f"{where}: expected as many numbers in each row of a table, got {held.min()} and "
                f"{held.max()}"
            )
        if str(numbers.type) not in ("float", "double", "halffloat", "uint8"):
            raise WeightsError(
                f"{where}: expected floating numbers or bytes, got lists of "
                f"{counted(int(held[0]), 'element')} of {str(numbers.type)[:100]}"
            )
        found: NDArray[np.generic] = numbers.to_numpy(zero_copy_only=False)
        return found.reshape(len(column), int(held[0]))

    def _mask(self, chosen: NDArray[np.bool_]) -> Any:
        arrow: Any = importlib.import_module("pyarrow")
        return arrow.array(chosen)

    def _filled(self, batch: Any, name: str) -> Any:
        column = batch.column(name)
        if column.null_count:
            raise WeightsError(
                f"{self.path}: {name!r}: expected a value in each row, got none in "
                f"{column.null_count} of {len(column)}"
            )
        return column
