"""HPS's messages of changed rows, as kcat writes them from Kafka to a file.

    kcat -C -e -t hps_et.<model>.<table> -f '%R%s' > item.hps

Each message is its length, int32 big-endian (`%R`, -1: no content), and its content (`%s`), whose
numbers are all little-endian:

    "HCTR", uint32 bytes of a row, then keys and rows in turn: (int64 or uint32, fp32 [dim]) ...

Sources: `KafkaMessageSink::post` in `HugeCTR/src/hps/kafka_message.cpp` of release 24.06, and
`format.c` of kcat. A message without keys only tests the connection.
"""

import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import WeightsError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.importing.changes.changed_rows import (
    ChangedRows,
    Changes,
    check_changes,
    last_of_each,
)
from sharded_infer.importing.id_maps.stored_ids import as_ids

_MAGIC = b"HCTR"
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct("<4sI")
# Kafka's own limit is 2 GiB; HPS sends 256 KiB, and receives 128 MiB.
_MOST_BYTES = 128 * 2**20


def open_hps_messages(
    path: Path | str, table: str, *, keys: Literal["int64", "uint32"] = "int64"
) -> Changes:
    """Read a file of HPS's messages of one table; the last row of each key wins.

    Args:
        path: written by kcat with `-f '%R%s'`.
        keys: `int64` if HPS is configured with `"i64_input_key": true`.

    Raises:
        WeightsError: a truncated or foreign file, or mixed row lengths; names the file and the
            byte.
    """
    path = Path(path)
    if keys not in ("int64", "uint32"):
        raise WeightsError(f"{path}: keys: expected 'int64' or 'uint32', got {keys!r}")
    pair_keys: list[NDArray[Any]] = []
    rows: list[NDArray[Any]] = []
    try:
        with open_regular(path, follow=True) as file:
            for where, content in _messages(path, file):
                pairs = _pairs(where, content, np.dtype(keys).newbyteorder("<"))
                if not len(pairs):
                    continue
                if rows and pairs["row"].shape[1] != rows[0].shape[1]:
                    raise WeightsError(
                        f"{where}: expected rows of {counted(rows[0].shape[1], 'number')}, got "
                        f"{pairs['row'].shape[1]}"
                    )
                pair_keys.append(pairs["key"])
                rows.append(pairs["row"])
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not rows:
        return {}
    ids = as_ids(np.concatenate(pair_keys).astype(keys))
    last = last_of_each(ids)
    values = torch.from_numpy(np.concatenate(rows)[last].astype(np.float32))
    return check_changes({table: ChangedRows(ids[last], values)}, str(path))


def _messages(path: Path, file: BufferedReader) -> Iterator[tuple[str, bytes]]:
    """Yield each message's position, for errors, and its content."""
    while prefix := file.read(_LENGTH.size):
        where = f"{path}: message at byte {file.tell() - len(prefix)}"
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else 0
        if len(prefix) != _LENGTH.size or length > _MOST_BYTES or length < -1:
            raise WeightsError(
                f"{where}: expected the length of a message of HPS, -1 to {_MOST_BYTES}, got "
                f"{prefix!r}; write the file by kcat -f '%R%s'"
            )
        if length == -1:
            continue
        content = file.read(length)
        if len(content) != length:
            raise WeightsError(f"{where}: expected {length} bytes, got {len(content)}")
        yield where, content


def _pairs(where: str, content: bytes, key: np.dtype[Any]) -> NDArray[Any]:
    magic, row_bytes = _HEADER.unpack_from(content) if len(content) >= _HEADER.size else (b"", 0)
    if magic != _MAGIC:
        raise WeightsError(
            f"{where}: expected {_MAGIC!r} and the bytes of a row, got {content[:8]!r}"
        )
    size, held = key.itemsize + row_bytes, len(content) - _HEADER.size
    if held and (not row_bytes or row_bytes % 4 or held % size):
        raise WeightsError(
            f"{where}: expected keys of {counted(key.itemsize, 'byte')} with rows of {row_bytes}, "
            f"fp32, got {counted(held, 'byte')} of them"
        )
    # A message without keys does not determine the row's size.
    numbers = row_bytes // 4 if held else 0
    pair = np.dtype([("key", key), ("row", "<f4", (numbers,))])
    return np.frombuffer(content, pair, offset=_HEADER.size, count=held // size if held else 0)
