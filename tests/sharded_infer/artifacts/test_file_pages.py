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
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.artifacts.table_memory import huge_page_bytes, map_pages
from sharded_infer.errors import ArtifactError
from tests.support.large_folios import drop_cached, has_large_folios, write_in_small_pieces

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


def test_verifying_reads_a_file_to_large_pages(large_path: Path, published_version: Path) -> None:
    record = FileRecord(SIZE, hashlib.sha256(large_path.read_bytes()).hexdigest())
    manifest = replace(open_artifact(published_version).manifest, files={large_path.name: record})
    artifact = Artifact(large_path.parent, manifest)
    drop_cached(large_path)
    assert verify_files(artifact) == SIZE
    assert read_large(large_path, quietly) == PAGES * HUGE_PAGE_BYTES
    with large_path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([large_path.read_bytes()[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="large: altered: its SHA-256"):
        verify_files(artifact)


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
