"""Vocabularies: files of strings, one a line; a string's row is its line's number from 0."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

import numpy as np

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from sharded_infer.errors import InputError, WeightsError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource, Ids
from sharded_infer.importing.id_maps.stored_ids import CHUNK

LONGEST = 65536  # bytes of a string
_CHUNK_BYTES = 2**24  # of strings that are hashed at once


def open_vocabulary(
    path: Path | str, strings: Literal["xxh3_64", "murmur3_x64_128"], seed: int = 0
) -> IdMapSource:
    """Open, check and count a vocabulary.

    Args:
        path: a file of lines ending in LF or CR LF. Strings are taken as bytes.
        strings: the hash function from strings to ids.
        seed: of that function.

    Raises:
        WeightsError: the file is unreadable or empty, a string is too long or repeated, or two
            strings collide; names both lines.
    """
    path = Path(path)
    if strings not in [name.value for name in StringHash]:
        raise WeightsError(
            f"{path}: strings: expected {' or '.join(StringHash)}, which makes ids of them, got "
            f"{strings!r:.100}"
        )
    read = _Reader(path, StringHash(strings), seed)
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in read())])
    if not len(ids):
        raise WeightsError(f"{path}: expected a string a line, got none")
    ids.sort()
    again = np.flatnonzero(ids[1:] == ids[:-1])
    if len(again):
        raise read.twice(int(ids[again[0]]))
    return IdMapSource(str(path), len(ids), read, strings=strings, seed=seed)


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    name: StringHash
    seed: int

    def __call__(self) -> Iterator[Chunk]:
        start, lines, size = 0, list[bytes](), 0
        for line in self._lines():
            lines.append(line)
            size += len(line)
            if len(lines) == CHUNK or size >= _CHUNK_BYTES:
                yield self._hash(lines), np.arange(start, start + len(lines))
                start, lines, size = start + len(lines), [], 0
        if lines:
            yield self._hash(lines), np.arange(start, start + len(lines))

    def twice(self, wanted: int) -> WeightsError:
        found: list[tuple[int, bytes]] = []
        for number, line in enumerate(self._lines()):
            if int(self._hash([line])[0]) == wanted:
                found.append((number, line))
                if len(found) == 2:
                    break
        (first, one), (second, other) = (*found, (0, b""), (0, b""))[:2]
        if one == other:
            return WeightsError(
                f"{self.path}: expected each string once, got {_shown(one)} in lines {first} and "
                f"{second} (from 0)"
            )
        return WeightsError(
            f"{self.path}: {_shown(one)} and {_shown(other)}, lines {first} and {second} (from 0), "
            f"have one {self.name} hash with seed {self.seed}; take another seed"
        )

    def _hash(self, lines: list[bytes]) -> Ids:
        try:
            return hash_strings(self.name, *joined_strings(lines), self.seed)
        except InputError as error:
            raise WeightsError(f"{self.path}: {error}") from error

    def _lines(self) -> Iterator[bytes]:
        try:
            with open_regular(self.path, follow=True) as file:
                yield from self._split(file)
        except OSError as error:
            reason = error.strerror or error
            raise WeightsError(f"{self.path}: cannot be read: {reason}") from error

    def _split(self, file: BufferedReader) -> Iterator[bytes]:
        number = 0
        while line := file.readline(LONGEST + 3):
            text = line.removesuffix(b"\n").removesuffix(b"\r") if line[-1:] == b"\n" else line
            if len(text) > LONGEST:
                raise WeightsError(
                    f"{self.path}: line {number} (from 0): expected at most {LONGEST} bytes, got "
                    f"{_shown(text)} and more"
                )
            yield text
            number += 1


def _shown(string: bytes) -> str:
    return repr(string[:60].decode("utf-8", "replace"))
