"""Files of a recording: `model=NAME/version=N/hour=TIME/PROCESS-NUMBER.parquet`."""

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Protocol
from urllib.parse import quote

from kernels.wording import counted
from sharded_infer.errors import ShardedInferError
from sharded_infer.repositories.storage.object_store import ObjectStore

_log = logging.getLogger("sharded_infer")
FILE_BYTES = 16 * 2**20
FILE_SECONDS = 60.0
_SILENT_SECONDS = 60.0
# A dictionary of ids would take most of the time, and nobody looks for a row by its least id.
_FORMAT = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": False,
}


class Destination(Protocol):
    """Where files go: whole or not at all."""

    def write(self, key: str, content: bytes) -> None:
        """Write a file; OSError or ShardedInferError if it cannot be written."""
        ...


class FolderDestination:
    """A folder that its owner alone can read, created as needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, key: str, content: bytes) -> None:
        """See `Destination.write`."""
        path = self._folder / key
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        try:
            with os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


class StoreDestination:
    """Objects below a URL."""

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)

    def write(self, key: str, content: bytes) -> None:
        """See `Destination.write`."""
        self._store.create(key, content)


def destination_of(record: str) -> Destination:
    """Of a folder, or a URL such as s3://bucket/prefix.

    Raises InputError for an unknown file system, OSError for a folder that cannot be created.
    """
    return StoreDestination(record) if "://" in record else FolderDestination(Path(record))


@dataclass(slots=True)
class _Waiting:
    """Tables of one file that is not written yet."""

    began: float
    tables: list[Any] = field(default_factory=list)
    rows: int = 0
    size: int = 0


class RecordFiles:
    """Writes tables as files, by size and time.

    Attributes:
        written: requests in files.
        lost: requests of files that could not be written.
    """

    def __init__(self, destination: Destination, arrow: Any, parquet: Any) -> None:
        self._destination, self._arrow, self._parquet = destination, arrow, parquet
        self._prefix = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._number = 0
        self._waiting: dict[str, _Waiting] = {}
        self.written = self.lost = 0
        self._silent_until = 0.0

    def add(self, model: str, version: int, table: Any) -> None:
        """Adds requests of a version, which ended just now."""
        hour = datetime.now(UTC).strftime("%Y-%m-%dT%H")
        folder = f"model={quote(model, safe='')}/version={version}/hour={hour}"
        waiting = self._waiting.setdefault(folder, _Waiting(monotonic()))
        waiting.tables.append(table)
        waiting.rows += table.num_rows
        waiting.size += table.nbytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of tables that are not written yet."""
        return sum(waiting.size for waiting in self._waiting.values())

    def write_full(self, now: float) -> None:
        """Writes files that are large, or that have waited."""
        for folder in list(self._full(now)):
            self._write(folder)

    def write_all(self) -> None:
        """Writes what waits."""
        for folder in list(self._waiting):
            self._write(folder)

    def _full(self, now: float) -> Iterator[str]:
        for folder, waiting in self._waiting.items():
            if waiting.size >= FILE_BYTES or now - waiting.began >= FILE_SECONDS:
                yield folder

    def _write(self, folder: str) -> None:
        waiting = self._waiting.pop(folder)
        key = f"{folder}/{self._prefix}-{self._number:08d}.parquet"
        self._number += 1
        try:
            table = self._arrow.concat_tables(waiting.tables, promote_options="default")
            buffer = self._arrow.BufferOutputStream()
            self._parquet.write_table(
                table, buffer, column_encoding=self._encodings(table), **_FORMAT
            )
            self._destination.write(key, buffer.getvalue().to_pybytes())
        except (OSError, ShardedInferError, self._arrow.ArrowException) as error:
            self.lost += waiting.rows
            if monotonic() >= self._silent_until:
                self._silent_until = monotonic() + _SILENT_SECONDS
                _log.warning(
                    "recording: %s lost: %s: %s",
                    counted(waiting.rows, "request"),
                    key,
                    error,
                )
        else:
            self.written += waiting.rows

    def _encodings(self, table: Any) -> dict[str, str]:
        """Differences of ids and of lengths, which take less time to compress."""
        is_list, is_integer = self._arrow.types.is_large_list, self._arrow.types.is_integer
        return {
            f"{field.name}.list.element": "DELTA_BINARY_PACKED"
            for field in table.schema
            if is_list(field.type) and is_integer(field.type.value_type)
        }
