from pathlib import Path

import numpy as np
import pytest

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps import vocabulary
from sharded_infer.importing.id_maps.id_files import open_id_file
from sharded_infer.importing.id_maps.vocabulary import open_vocabulary

STRINGS = ["café", "", "a b", " a", "0x7f", "'", "x" * 65536, "\ttab", "\r", "zwei\rdrei"]


def _ids(name: str, strings: list[bytes], seed: int) -> list[int]:
    return hash_strings(StringHash(name), *joined_strings(strings), seed).tolist()


@pytest.mark.parametrize("name", list(StringHash))
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_the_line_is_the_row_of_its_string(
    name: str, seed: int, end: str, last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK", 3)
    strings = [s.encode() for s in STRINGS if end == "\r\n" or s != "\r"]
    text = end.encode().join(strings) + (end.encode() if last else b"")
    (tmp_path / "words.txt").write_bytes(text)
    source = open_vocabulary(tmp_path / "words.txt", name, seed)
    assert (source.strings, source.seed, source.count) == (name, seed, len(strings))
    for _ in range(2):
        ids, rows = (np.concatenate(part) for part in zip(*source.chunks(20), strict=True))
        assert rows.tolist() == list(range(len(strings)))
        assert ids.tolist() == _ids(name, strings, seed)


def test_open_id_file_opens_text_as_a_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\n")
    source = open_id_file(tmp_path / "words.txt", strings="xxh3_64", seed=3)
    assert (source.strings, source.seed, source.count) == ("xxh3_64", 3, 2)
    with pytest.raises(WeightsError, match="strings: expected xxh3_64 or murmur3.*got None"):
        open_id_file(tmp_path / "words.txt")


def test_a_string_that_comes_twice_is_refused_with_its_lines(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\nc\nb\n")
    with pytest.raises(
        WeightsError, match=r"words\.txt: .* each string once, got 'b' in lines 1 and 3"
    ):
        open_vocabulary(tmp_path / "words.txt", "xxh3_64")


def test_two_strings_with_one_hash_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No two short strings with one hash are at hand: only the first letter is hashed.
    monkeypatch.setattr(
        vocabulary, "joined_strings", lambda lines: joined_strings([line[:1] for line in lines])
    )
    (tmp_path / "words.txt").write_text("apple\npear\nalmond\n")
    with pytest.raises(WeightsError, match=r"'apple' and 'almond', lines 0 and 2 .*another seed"):
        open_vocabulary(tmp_path / "words.txt", "murmur3_x64_128", 9)
