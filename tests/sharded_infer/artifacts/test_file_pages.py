import gc
import hashlib
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from kernels.errors import LostMemoryError
from kernels.mapped_file import MappedFile
from sharded_infer.artifacts.artifact import Artifact, open_artifact, verify_files
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, map_file
from sharded_infer.artifacts.file_pages import read_large, tensor_of
from sharded_infer.artifacts.manifest import FileRecord, Manifest
from sharded_infer.artifacts.table_file import map_table_file
from sharded_infer.artifacts.table_header import TableEntry
from sharded_infer.artifacts.table_memory import huge_page_bytes, map_pages
from sharded_infer.errors import ArtifactError
from tests.support.large_folios import drop_cached, has_large_folios, write_in_small_pieces
from tests.support.table_files import write_table_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are Linux's")
PAGES = 9
SIZE = PAGES * HUGE_PAGE_BYTES + 12345
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system of its own


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Written in small pieces, as many copying programs do."""
    path = tmp_path / "large"
    write_small(path)
    return path


@pytest.fixture
def large_path(path: Path) -> Path:
    if not has_large_folios(path.parent):
        pytest.skip("this file system has no large folios")
    return path


@pytest.fixture
def in_memory() -> Iterator[Path]:
    if not SHARED_MEMORY.is_dir():
        pytest.skip("no tmpfs")
    with TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        write_small(Path(folder) / "large")
        yield Path(folder) / "large"


def write_small(path: Path) -> None:
    write_in_small_pieces(path, np.random.default_rng(3).bytes(SIZE))


def mapped(path: Path, *, large: bool) -> torch.Tensor:
    with path.open("rb") as file:
        return tensor_of(map_file(file.fileno(), path.stat().st_size, large=large))


def quietly(_: int) -> None:
    pass


@pytest.mark.parametrize("large", [False, True])
def test_a_mapping_has_the_files_bytes_at_a_multiple_of_2_mib(path: Path, large: bool) -> None:
    memory = mapped(path, large=large)
    assert memory.data_ptr() % HUGE_PAGE_BYTES == 0 and memory.dtype is torch.uint8
    assert memory.numpy().tobytes() == path.read_bytes()


def test_a_mapping_goes_with_its_last_tensor(path: Path) -> None:
    part = mapped(path, large=True)[5:7]
    assert str(path) in Path("/proc/self/maps").read_text()
    assert part.tolist() == list(path.read_bytes()[5:7])
    del part
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_file_of_any_size_can_be_mapped(tmp_path: Path) -> None:
    for size in (1, 4095, 4097, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES):
        path = tmp_path / str(size)
        path.write_bytes(b"\7" * size)
        memory = mapped(path, large=True)
        assert len(memory) == size and int(memory[-1]) == 7


def test_what_is_in_small_pages_is_read_again_into_large_ones(large_path: Path) -> None:
    content = large_path.read_bytes()
    steps: list[int] = []
    assert read_large(large_path, steps.append) < HUGE_PAGE_BYTES
    # Read again although nothing of it was on the disk yet: what is dirty is written first.
    assert read_large(large_path, quietly, again=True) == PAGES * HUGE_PAGE_BYTES
    assert sum(steps) == SIZE
    assert large_path.read_bytes() == content
    memory = mapped(large_path, large=True)
    map_pages([memory], quietly)
    assert huge_page_bytes([memory]) == PAGES * HUGE_PAGE_BYTES
    assert memory.numpy().tobytes() == content


def test_a_file_of_which_the_first_part_is_in_large_pages_is_read_again(large_path: Path) -> None:
    content = large_path.read_bytes()
    large_path.unlink()
    with large_path.open("wb", buffering=0) as file:
        file.write(content[: 8 * HUGE_PAGE_BYTES])
        for first in range(8 * HUGE_PAGE_BYTES, SIZE, 2**18):
            file.write(content[first : first + 2**18])
    assert read_large(large_path, quietly) == 8 * HUGE_PAGE_BYTES
    assert read_large(large_path, quietly, again=True) == PAGES * HUGE_PAGE_BYTES
    assert large_path.read_bytes() == content


def test_pages_that_another_process_maps_stay_where_they_are(large_path: Path) -> None:
    before = mapped(large_path, large=False)
    map_pages([before], quietly)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    assert read_large(large_path, quietly, again=True) < HUGE_PAGE_BYTES
    assert before.numpy().tobytes() == large_path.read_bytes()
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_majflt == faults
    del before
    gc.collect()
    assert read_large(large_path, quietly, again=True) == PAGES * HUGE_PAGE_BYTES


def test_files_in_memory_are_joined_to_large_pages(in_memory: Path) -> None:
    content = in_memory.read_bytes()
    found = read_large(in_memory, quietly)
    if not found and not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages")
    assert found == PAGES * HUGE_PAGE_BYTES
    assert in_memory.read_bytes() == content


def test_a_small_file_has_no_large_pages(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"\1" * (HUGE_PAGE_BYTES - 1))
    assert read_large(tmp_path / "small", quietly, again=True) == 0
    with pytest.raises(FileNotFoundError):
        read_large(tmp_path / "none", quietly)


@pytest.mark.parametrize("rows_of_a_chunk", [1000, 30_011])
def test_a_table_file_lies_in_large_pages_once_it_is_written(
    tmp_path: Path, rows_of_a_chunk: int
) -> None:
    if not has_large_folios(tmp_path):
        pytest.skip("this file system has no large folios")
    path = tmp_path / "int8-00000.safetensors"
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 256, (70_000, 132), dtype=torch.uint8, generator=generator)
    entries = [TableEntry("user", 50_000, 132), TableEntry("item", 20_000, 132)]
    write_table_file(path, entries, rows.split(rows_of_a_chunk))
    whole = path.stat().st_size // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    assert whole == 4 * HUGE_PAGE_BYTES
    tables = map_table_file(path, large=True)
    memory, first = tables["user"].memory, tables["user"].byte_offset
    map_pages([memory], quietly)
    assert huge_page_bytes([memory]) == whole
    assert torch.equal(memory[first:].view(-1, 132), rows)


def alone(manifest: Manifest, path: Path) -> Artifact:
    with path.open("rb") as file:
        record = FileRecord(SIZE, hashlib.file_digest(file, "sha256").hexdigest())
    return Artifact(path.parent, replace(manifest, files={path.name: record}))


def test_verifying_a_file_reads_it_into_large_pages(
    large_path: Path, published_version: Path
) -> None:
    artifact = alone(open_artifact(published_version).manifest, large_path)
    drop_cached(large_path)
    assert verify_files(artifact) == SIZE
    assert read_large(large_path, quietly) == PAGES * HUGE_PAGE_BYTES
    with large_path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([large_path.read_bytes()[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="large: altered: its SHA-256"):
        verify_files(artifact)


def test_a_file_is_verified_without_the_address_space_to_map_it(
    path: Path, published_version: Path
) -> None:
    artifact = alone(open_artifact(published_version).manifest, path)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SIZE
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
        with pytest.raises(OSError, match="Cannot allocate memory"):
            mapped(path, large=True)
        assert verify_files(artifact) == SIZE
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_large_page_that_is_lost_is_noticed(large_path: Path) -> None:
    read_large(large_path, quietly, again=True)
    with large_path.open("rb") as file:
        memory = map_file(file.fileno(), SIZE, large=True)
        watched = MappedFile(large_path, file.fileno(), memory)
    map_pages([tensor_of(memory)], quietly)
    watched.check()
    os.truncate(large_path, HUGE_PAGE_BYTES + 5)
    assert memory[2 * HUGE_PAGE_BYTES] == 0 and memory[4 * HUGE_PAGE_BYTES + 7] == 0
    with pytest.raises(LostMemoryError, match=f"has become shorter .* {HUGE_PAGE_BYTES + 5} bytes"):
        watched.check()
