"""Rows as values of RocksDB, a peer of our tiers: its keys are the ids. Needs `rocksdict`.

One level of sorted files with blocks of 4 KiB, uncompressed; reads past the page cache, and a block
cache as the only cache.
"""

from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import rocksdict
import torch

from benchmarks.tiers.row_stores import ROW_BYTES, Counts, Ids, RowStore, pooled, row_lookup
from sharded_infer.progress import Progress

_FILE_ROWS = 2**21
_WARM_SECONDS = 30.0


def write_rocks(folder: Path, table: Path, progress: Progress) -> None:
    """Write a table's file to a new database: row r with the key r."""
    content = np.memmap(table, np.uint8, "r")
    count = len(content) // ROW_BYTES
    options, files = _options(0), []
    for first in range(0, count, _FILE_ROWS):
        progress("writing RocksDB", first, count)
        some = content[first * ROW_BYTES : (first + _FILE_ROWS) * ROW_BYTES].tobytes()
        keys = _keys(np.arange(first, min(count, first + _FILE_ROWS)))
        path = str(folder / f"{first}.sst")
        writer = rocksdict.SstFileWriter(options)
        writer.open(path)
        for at, key in enumerate(keys):
            writer[key] = some[at * ROW_BYTES : (at + 1) * ROW_BYTES]
        writer.finish()
        files.append(path)
    move = rocksdict.IngestExternalFileOptions()
    move.set_move_files(True)
    database = rocksdict.Rdict(str(folder / "db"), options)
    database.ingest_external_file(files, move)
    database.close()
    progress("writing RocksDB", count, count)


class RocksRows(RowStore):
    """Rows of a database that `write_rocks` wrote."""

    def __init__(self, folder: Path, room: int) -> None:
        """Open the database with a block cache of `room` bytes, including its index."""
        access = rocksdict.AccessType.read_only()
        self._database = rocksdict.Rdict(str(folder / "db"), _options(room), access_type=access)
        self._since = monotonic()

    @property
    def is_warm(self) -> bool:
        return monotonic() - self._since > _WARM_SECONDS

    def look_up(self, ids: Ids) -> torch.Tensor:
        """Pool; the binding reads one row after the other."""
        values: Any = self._database.get(_keys(ids))
        rows = torch.frombuffer(bytearray(b"".join(values)), dtype=torch.uint8)
        return pooled(row_lookup(rows), np.arange(len(ids)))

    def counts(self) -> Counts:
        """Only zero ids: the binding does not report its cache."""
        return Counts(0, None, None)

    def close(self) -> None:
        self._database.close()


def _keys(ids: Ids) -> list[Any]:
    whole = ids.astype(">u8").tobytes()
    return [whole[at : at + 8] for at in range(0, len(whole), 8)]


def _options(room: int) -> rocksdict.Options:
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_size(4096)
    if room:
        blocks.set_block_cache(rocksdict.Cache(room))
        blocks.set_cache_index_and_filter_blocks(True)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_use_direct_reads(True)
    return options
