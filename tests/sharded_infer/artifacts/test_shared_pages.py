import fcntl
import gc
import mmap
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES
from sharded_infer.artifacts.shared_pages import (
    copy_to_shared_pages,
    open_shared_pages,
    prefer_node,
    why_not_shared,
)
from sharded_infer.artifacts.table_memory import huge_page_bytes
from sharded_infer.errors import ArtifactError
from tests.sharded_infer.artifacts.test_table_memory import large as large

pytestmark = pytest.mark.skipif(
    why_not_shared() != "", reason=f"this kernel cannot: {why_not_shared()}"
)
# Another program of the same user: it has nothing from a fork.
OPENER = """
import sys
from sharded_infer.artifacts.shared_pages import Place, open_shared_pages
from sharded_infer.artifacts.table_memory import huge_page_bytes
pages = open_shared_pages(Place(*map(int, sys.argv[1:4])), int(sys.argv[4]))
sys.stdout.buffer.write(b"%d\\n" % huge_page_bytes([pages.memory]))
sys.stdout.buffer.write(pages.memory.numpy().tobytes())
"""


def _shared_memory() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Shmem:"))


def test_a_copy_has_the_files_bytes_in_large_pages_and_tells_of_each_step(large: Path) -> None:
    steps: list[int] = []
    memory = copy_to_shared_pages(large, steps.append).memory
    assert memory.dtype is torch.uint8
    assert memory.numpy().tobytes() == large.read_bytes()
    assert sum(steps) == large.stat().st_size and len(steps) > 1
    assert memory.data_ptr() % HUGE_PAGE_BYTES == 0
    assert huge_page_bytes([memory]) == large.stat().st_size


def test_another_process_opens_it_in_large_pages(large: Path) -> None:
    pages = copy_to_shared_pages(large, lambda _: None)
    place = pages.place
    words = map(str, (place.process, place.handle, place.inode, large.stat().st_size))
    done = subprocess.run(
        [sys.executable, "-c", OPENER, *words], stdout=subprocess.PIPE, check=True, timeout=120
    )
    huge, _, content = done.stdout.partition(b"\n")
    assert int(huge) == large.stat().st_size
    assert content == large.read_bytes()


def test_what_one_maps_stays_when_the_one_who_made_it_lets_go(large: Path) -> None:
    made = copy_to_shared_pages(large, lambda _: None)
    first = made.place
    opened = open_shared_pages(first, large.stat().st_size)
    assert opened is not None
    del made
    gc.collect()
    assert not first.is_open() and opened.place.is_open()
    assert opened.memory.numpy().tobytes() == large.read_bytes()
    assert open_shared_pages(first, large.stat().st_size) is None


def test_nobody_can_change_a_copy(large: Path) -> None:
    pages = copy_to_shared_pages(large, lambda _: None)
    handle = os.open(pages.place.path, os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.pwrite(handle, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(handle, 0)
        with pytest.raises(PermissionError):
            mmap.mmap(handle, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(handle)


def test_a_half_filled_copy_or_another_file_is_not_opened(large: Path) -> None:
    size = large.stat().st_size
    place = copy_to_shared_pages(large, lambda _: None).place
    handle = os.memfd_create("half", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(handle, -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
        half = replace(place, handle=handle, inode=os.fstat(handle).st_ino)
        assert half.is_open() and open_shared_pages(half, size) is None
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert open_shared_pages(half, size) is None
    finally:
        os.close(handle)
    with large.open("rb") as file:
        other = replace(place, handle=file.fileno(), inode=large.stat().st_ino)
        assert other.is_open() and open_shared_pages(other, size) is None


def test_a_handle_that_means_something_else_now_is_not_opened(large: Path) -> None:
    pages = copy_to_shared_pages(large, lambda _: None)
    size = large.stat().st_size
    for wrong in (
        replace(pages.place, inode=pages.place.inode + 1),
        replace(pages.place, handle=10**6),
        replace(pages.place, process=2**22 + 1),
    ):
        assert not wrong.is_open() and open_shared_pages(wrong, size) is None
    assert open_shared_pages(pages.place, size + HUGE_PAGE_BYTES) is None


def _open_copies() -> int:
    """Descriptors of copies; those of other tests' files come and go."""
    gc.collect()
    count = 0
    for handle in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            count += "memfd:" in os.readlink(f"/proc/self/fd/{handle}")
    return count


def test_a_copys_memory_and_handle_come_back(large: Path) -> None:
    handles = _open_copies()
    before = _shared_memory()
    for _ in range(2):
        pages = copy_to_shared_pages(large, lambda _: None)
        assert _shared_memory() - before >= large.stat().st_size
        del pages
        gc.collect()
    assert _shared_memory() - before < large.stat().st_size
    assert _open_copies() == handles


def test_a_file_that_cannot_be_read_or_ends_early_is_named(large: Path, tmp_path: Path) -> None:
    handles = _open_copies()
    with pytest.raises(ArtifactError, match="nowhere: cannot be copied to huge pages"):
        copy_to_shared_pages(tmp_path / "nowhere", lambda _: None)
    with pytest.raises(ArtifactError, match=r"large: ends at byte \d+, expected \d+"):
        copy_to_shared_pages(large, lambda _: os.truncate(large, 0))
    gc.collect()
    assert _open_copies() == handles


def test_pages_lie_on_the_node_that_is_named() -> None:
    if not prefer_node(0):
        pytest.skip("this kernel or container does not place memory")
    assert prefer_node(None)
    assert not prefer_node(1000)
