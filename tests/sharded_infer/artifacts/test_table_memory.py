import gc
import mmap
import os
import resource
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES
from sharded_infer.artifacts.table_memory import (
    copy_to_huge_pages,
    huge_page_bytes,
    interleave,
    map_pages,
    numa_nodes,
)

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are Linux's")


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "large"
    path.write_bytes(np.random.default_rng(3).bytes(9 * HUGE_PAGE_BYTES + 12345))
    yield path
    path.unlink()


def test_a_copy_has_the_files_bytes_and_tells_of_each_step(large: Path) -> None:
    steps: list[int] = []
    memory = copy_to_huge_pages(large, steps.append)
    assert memory.dtype is torch.uint8
    assert memory.numpy().tobytes() == large.read_bytes()
    assert sum(steps) == large.stat().st_size and len(steps) > 1
    assert memory.data_ptr() % HUGE_PAGE_BYTES == 0


@needs_linux
def test_a_copy_lies_in_huge_pages(large: Path) -> None:
    if not _SETTING.exists() or "[never]" in _SETTING.read_text():
        pytest.skip("this kernel gives no transparent huge pages")
    memory = copy_to_huge_pages(large, lambda _: None)
    # The last bit may share a page with what is mapped behind it.
    assert 9 * HUGE_PAGE_BYTES <= huge_page_bytes([memory]) <= large.stat().st_size
    mapping = mmap.mmap(-1, 4 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_NOHUGEPAGE)
    small = torch.frombuffer(mapping, dtype=torch.uint8).fill_(1)
    assert small.sum() > 0 and huge_page_bytes([small]) == 0


@needs_linux
def test_a_copys_memory_comes_back(large: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    gc.collect()
    before = resident()
    for _ in range(20):
        copy_to_huge_pages(large, lambda _: None)
        gc.collect()
    assert resident() - before < 5 * large.stat().st_size


@needs_linux
def test_memory_is_spread_over_the_nodes_that_are_given() -> None:
    nodes = numa_nodes()
    assert nodes == sorted(set(nodes)) and nodes[0] == 0
    memory = torch.empty(4 * HUGE_PAGE_BYTES, dtype=torch.uint8)
    page = os.sysconf("SC_PAGE_SIZE")
    start = -memory.data_ptr() % page
    size = (memory.numel() - start) // page * page
    if not interleave(memory.data_ptr() + start, size, nodes):
        pytest.skip("this kernel or container does not place memory")
    memory.fill_(1)
    policies = Path("/proc/self/numa_maps").read_text()
    assert f"{memory.data_ptr() + start:x} interleave" in policies


@needs_linux
def test_mapped_pages_are_there_before_they_are_read(large: Path) -> None:
    mapping = mmap.mmap(os.open(large, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
    steps: list[int] = []
    # The last part begins in the middle of a page.
    if not map_pages([memory[12345:]], steps.append):
        pytest.skip("this kernel cannot be asked")
    assert large.stat().st_size - 12345 <= sum(steps) < large.stat().st_size
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    assert int(memory[::4096].sum()) >= 0
    # 4,600 pages, of which the kernel would have mapped 16 at each fault.
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 100
