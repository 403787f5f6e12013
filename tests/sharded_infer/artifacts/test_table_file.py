import hashlib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sharded_infer.artifacts.manifest import BLOCK_BYTES
from sharded_infer.artifacts.table_file import map_table_file
from sharded_infer.artifacts.table_header import TableEntry
from tests.support.table_files import write_table_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "int8-00000.safetensors"


def random_rows(rows: int, row_bytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * row_bytes)
    return torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8, generator=generator)


def test_many_tables_are_mapped_as_they_were_written(path: Path) -> None:
    tables = {f"t{i}": random_rows(1 + 13 * i % 7, 1 + i) for i in range(40)}
    entries = [TableEntry(name, *rows.shape) for name, rows in tables.items()]
    write_table_file(path, entries, tables.values())
    mapped = map_table_file(path)
    assert [m.entry for m in mapped.values()] == entries
    for name, rows in tables.items():
        offset = mapped[name].byte_offset
        stored = mapped[name].memory[offset : offset + rows.numel()]
        assert torch.equal(stored.view(rows.shape), rows)
    assert len({m.memory.data_ptr() for m in mapped.values()}) == 1


def test_the_safetensors_library_reads_what_is_written(path: Path) -> None:
    tables = {"ads": random_rows(5, 7), "user": random_rows(1, 3), "item#2": random_rows(9, 64)}
    entries = [TableEntry(name, *rows.shape) for name, rows in tables.items()]
    write_table_file(path, entries, tables.values())
    loaded = load_file(path)
    assert set(loaded) == set(tables)
    for name, rows in tables.items():
        assert torch.equal(loaded[name], rows)


@pytest.mark.parametrize("name_length", range(1, 65, 9))
def test_the_first_row_begins_at_a_cache_line_and_tables_follow_at_once(
    path: Path, name_length: int
) -> None:
    rows = random_rows(3, 5)
    entries = [TableEntry("x" * name_length, 3, 5), TableEntry("y", 3, 5), TableEntry("z", 3, 5)]
    write_table_file(path, entries, [rows, rows, rows])
    offsets = [mapped.byte_offset for mapped in map_table_file(path).values()]
    assert offsets[0] % 64 == 0
    assert {second - first for first, second in pairwise(offsets)} == {15}


def test_a_file_is_never_overwritten(path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        write_table_file(path, [TableEntry("ads", 1, 4)], [random_rows(1, 4)])
    assert path.read_bytes() == b"precious"


def test_its_hash_is_told_and_those_of_its_blocks_lie_beside_it(path: Path) -> None:
    rows = random_rows(BLOCK_BYTES // 512 + 1, 1024)
    written = write_table_file(path, [TableEntry("ads", *rows.shape)], rows.split(700))
    content, hashes = path.read_bytes(), path.with_name(f"{path.name}.blocks").read_bytes()
    assert len(content) > 2 * BLOCK_BYTES
    blocks = [content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)]
    assert hashes == b"".join(hashlib.sha256(block).digest() for block in blocks)
    assert written.table.bytes == len(content)
    assert written.table.sha256 == hashlib.sha256(content).hexdigest()
    assert written.blocks.bytes == len(hashes) == 96
    assert written.blocks.sha256 == hashlib.sha256(hashes).hexdigest()
