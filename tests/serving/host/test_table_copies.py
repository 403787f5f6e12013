import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from serving.host.table_copies import TableCopies, shared_copies
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES
from sharded_infer.artifacts.shared_pages import why_not_shared

pytestmark = pytest.mark.skipif(
    why_not_shared() != "", reason=f"this kernel cannot: {why_not_shared()}"
)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """A file of two huge pages and a bit."""
    path = tmp_path / "table"
    path.write_bytes(np.random.default_rng(3).bytes(2 * HUGE_PAGE_BYTES + 12345))
    yield path
    path.unlink()


class Child:
    """A forked process that acts, and then waits until it is ended."""

    def __init__(self, work: Callable[[], object]) -> None:
        done, self._done = os.pipe()
        self._end, end = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            code = 1
            try:
                kept = work()
                os.write(self._done, b"x")
                os.read(self._end, 1)
                code = int(kept is None)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(self._done)
        os.close(self._end)
        self._reader, self._writer = done, end

    def wait_done(self) -> bool:
        return os.read(self._reader, 1) == b"x"

    def end(self, how: int = signal.SIGCONT) -> int:
        os.write(self._writer, b"x")
        os.kill(self.process, how)
        os.close(self._writer)
        os.close(self._reader)
        return os.waitpid(self.process, 0)[1]


def inode_of(memory: Tensor) -> int:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= memory.data_ptr() < last:
            return int(line.split()[4])
    raise AssertionError("not mapped")


def quietly(_: int) -> None:
    """Progress callback."""


def test_a_copy_that_a_sibling_made_is_mapped_and_not_made_again(table: Path) -> None:
    copies = TableCopies()
    child = Child(lambda: copies.copy(table, quietly))
    assert child.wait_done()
    assert copies.held_bytes([table]) == table.stat().st_size
    steps: list[int] = []
    mine = copies.copy(table, steps.append)
    assert not steps
    assert mine.numpy().tobytes() == table.read_bytes()
    # Mine is found after the one who made it is dead.
    child.end(signal.SIGKILL)
    again = copies.copy(table, steps.append)
    assert not steps and inode_of(again) == inode_of(mine)


def test_a_copy_is_made_again_when_nobody_has_it_any_more(table: Path) -> None:
    copies = TableCopies()
    first = copies.copy(table, quietly)
    del first
    gc.collect()
    assert copies.held_bytes([table]) == 0
    steps: list[int] = []
    assert copies.copy(table, steps.append).numpy().tobytes() == table.read_bytes()
    assert sum(steps) == table.stat().st_size


def test_a_file_that_changed_is_copied_again(table: Path) -> None:
    copies = TableCopies()
    old = copies.copy(table, quietly)
    content = table.read_bytes()
    table.write_bytes(content[::-1])
    assert copies.held_bytes([table]) == 0
    assert copies.copy(table, quietly).numpy().tobytes() == content[::-1]
    assert old.numpy().tobytes() == content


def test_the_death_of_the_one_who_copies_leaves_the_copy_to_the_next(table: Path) -> None:
    copies = TableCopies()
    reader, writer = os.pipe()

    def stop(_: int) -> None:
        os.write(writer, b"x")
        os.kill(os.getpid(), signal.SIGSTOP)

    child = Child(lambda: copies.copy(table, stop))
    assert os.read(reader, 1) == b"x"
    # It has the lock, and half a copy; another one waits for it.
    other = Child(lambda: copies.copy(table, quietly))
    os.waitpid(child.process, os.WUNTRACED)
    assert os.WIFSIGNALED(child.end(signal.SIGKILL))
    assert other.wait_done()
    steps: list[int] = []
    mine = copies.copy(table, steps.append)
    assert not steps and mine.numpy().tobytes() == table.read_bytes()
    assert os.waitstatus_to_exitcode(other.end()) == 0
    os.close(reader)
    os.close(writer)


def test_a_server_of_one_process_and_a_kernel_that_cannot_share_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert shared_copies(1) is None
    assert shared_copies(2) is not None

    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with caplog.at_level("INFO", logger="sharded_infer"):
        assert shared_copies(4) is None
    [line] = caplog.messages
    assert "cannot be shared" in line and "Invalid argument" in line
