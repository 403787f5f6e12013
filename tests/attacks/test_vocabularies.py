"""Vocabularies that are something else, or made to take memory."""

import tracemalloc
from pathlib import Path

import pytest

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.vocabulary import LONGEST, open_vocabulary


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "words.txt"


def test_an_empty_file_is_refused(file: Path) -> None:
    file.touch()
    with pytest.raises(WeightsError, match=r"words\.txt: expected a string a line, got none"):
        open_vocabulary(file, "xxh3_64")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_without_end_is_refused_before_it_is_read(file: Path, end: bytes) -> None:
    file.write_bytes(b"a\n" + b"x" * (LONGEST + 1) + end)
    with pytest.raises(WeightsError, match=rf"line 1 \(from 0\): expected at most {LONGEST} bytes"):
        open_vocabulary(file, "xxh3_64")
    with file.open("wb") as written:
        written.truncate(2**40)  # no disk space is used
    tracemalloc.start()
    with pytest.raises(WeightsError, match=r"line 0 \(from 0\): expected at most"):
        open_vocabulary(file, "xxh3_64")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_the_hash_does_not_take_is_refused(file: Path, seed: int) -> None:
    file.write_text("a\n")
    with pytest.raises(WeightsError, match=r"words\.txt: murmur3.*unsigned number of 32 bits"):
        open_vocabulary(file, "murmur3_x64_128", seed)


def test_another_hash_is_refused_by_name(file: Path) -> None:
    file.write_text("a\n")
    with pytest.raises(WeightsError, match="expected xxh3_64 or murmur3_x64_128.*got 'md5'"):
        open_vocabulary(file, "md5")


def test_bytes_that_are_no_text_are_strings(file: Path) -> None:
    file.write_bytes(bytes(b for b in range(256) if b not in b"\r\n") + b"\n\x00\n\xff\xfe")
    assert open_vocabulary(file, "xxh3_64").count == 3


def test_long_strings_are_read_in_bounded_memory(file: Path) -> None:
    with file.open("wb") as written:
        for number in range(2000):
            written.write(str(number).encode() + b"x" * (LONGEST - 8) + b"\n")
    tracemalloc.start()
    source = open_vocabulary(file, "xxh3_64")
    rows = [rows for _, rows in source.chunks(2000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.count == 2000 and [*rows[0], *rows[1]][-1] == sum(map(len, rows[:2])) - 1
    assert peak < 50 * 2**20 < file.stat().st_size
