"""Copies of files in 2 MiB pages that processes share, whichever of them made the copy.

    memory   a memfd: memory without a file, as long as a process maps it or has it open
    pages    made large before they are filled (MADV_COLLAPSE), whatever `shmem_enabled` says
    seals    set when filled: it is immutable then, and others map only sealed memory

A process opens another's memory as `/proc/PID/fd/HANDLE`, which the kernel allows to the same user.
"""

import ctypes
import fcntl
import os
import platform
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import Tensor

from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, MADV_COLLAPSE, advise, map_file
from sharded_infer.artifacts.file_pages import tensor_of
from sharded_infer.artifacts.table_memory import (
    map_pages,
    numa_nodes,
    opened_to_copy,
)
from sharded_infer.errors import ArtifactError

_STEP_BYTES: Final = 8 * HUGE_PAGE_BYTES
_MPOL_DEFAULT, _MPOL_PREFERRED = 0, 1  # linux/mempolicy.h
# The C library has no `set_mempolicy`.
_SET_MEMPOLICY_NUMBERS: Final = {"x86_64": 238, "aarch64": 237}
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Place:
    """A process's handle of shared memory.

    The memory's `inode` detects reuse of the handle or the process id.
    """

    process: int
    handle: int
    inode: int

    @property
    def path(self) -> Path:
        """The path by which other processes open it."""
        return Path(f"/proc/{self.process}/fd/{self.handle}")

    def is_open(self) -> bool:
        """True if the process still has it open."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class SharedPages:
    """Sealed shared memory, uint8 `[bytes of the file]`, mapped for reading by this process.

    The last tensor that uses `memory` closes this process's `place`.
    """

    memory: Tensor
    place: Place


def why_not_shared() -> str:
    """Why this kernel or container shares no 2 MiB pages; empty: it does."""
    try:
        with _unfilled(HUGE_PAGE_BYTES) as (handle, pages):
            _make_large(handle, pages.memory, 0, HUGE_PAGE_BYTES)
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
            os.close(os.open(pages.place.path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return str(error)
    return ""


def copy_to_shared_pages(path: Path, on_read: Callable[[int], None]) -> SharedPages:
    """Copy a file to new shared memory, all present and sealed on return.

    Pages stay small where the kernel finds no large one; see `huge_page_bytes`. `on_read` is called
    with the bytes of each step. Raises ArtifactError if the file is unreadable, CapacityError with
    the size if memory is short.
    """
    with opened_to_copy(path) as (file, size), _unfilled(size) as (handle, pages):
        done = 0
        while done < size:
            end = min(size, done + _STEP_BYTES)
            with suppress(OSError):
                _make_large(handle, pages.memory, done, end)
            while done < end:
                count = os.sendfile(handle, file.fileno(), done, end - done)
                if not count:
                    raise ArtifactError(f"{path}: ends at byte {done}, expected {size}")
                done += count
                on_read(count)
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
        map_pages([pages.memory], lambda _: None)
        return pages


def open_shared_pages(place: Place, size: int) -> SharedPages | None:
    """Map another process's copy of a file of `size` bytes; None if gone or inaccessible."""
    try:
        handle = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        sealed = fcntl.fcntl(handle, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if not sealed or (status.st_ino, status.st_size) != (place.inode, _room(size)):
            os.close(handle)
            return None
    except OSError:
        # Only a memfd has seals.
        os.close(handle)
        return None
    pages = _mapped(handle, size)
    map_pages([pages.memory], lambda _: None)
    return pages


@contextmanager
def _unfilled(size: int) -> Iterator[tuple[int, SharedPages]]:
    handle = os.memfd_create("sharded-infer-table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(handle, _room(size))
        # Its own handle: a mapping that could become writable would forbid the seal.
        yield handle, _mapped(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC), size)
    finally:
        os.close(handle)


def _mapped(handle: int, size: int) -> SharedPages:
    try:
        view = map_file(handle, _room(size), large=False)
    except BaseException:
        os.close(handle)
        raise
    weakref.finalize(view, os.close, handle)
    place = Place(os.getpid(), handle, os.fstat(handle).st_ino)
    return SharedPages(tensor_of(view)[:size], place)


def _make_large(handle: int, memory: Tensor, first: int, end: int) -> None:
    """Request large pages from byte `first` to `end`; their first bytes are overwritten."""
    nodes = numa_nodes()
    try:
        for at in range(first, end, HUGE_PAGE_BYTES):
            if len(nodes) > 1:
                prefer_node(nodes[at // HUGE_PAGE_BYTES % len(nodes)])
            # A large page replaces a present small one; without any the kernel refuses.
            os.pwrite(handle, b"\0", at)
    finally:
        if len(nodes) > 1:
            prefer_node(None)
    address, size = memory.data_ptr() + first, _room(end - first)
    if not advise(address, size, MADV_COLLAPSE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def prefer_node(node: int | None) -> bool:
    """Set the NUMA node of this thread's new pages; None: where the thread runs.

    False if the kernel refuses; a container may forbid it.
    """
    number = _SET_MEMPOLICY_NUMBERS.get(platform.machine())
    if number is None:
        return False
    if node is None:
        mode, mask, bits = _MPOL_DEFAULT, None, 0
    else:
        words = [(1 << node) >> (64 * at) & (2**64 - 1) for at in range(node // 64 + 1)]
        # The kernel takes one bit less than the given number.
        mode, mask, bits = (
            _MPOL_PREFERRED,
            (ctypes.c_ulong * len(words))(*words),
            64 * len(words) + 1,
        )
    result: int = _libc.syscall(
        ctypes.c_long(number), ctypes.c_int(mode), mask, ctypes.c_ulong(bits)
    )
    return result == 0


def _room(size: int) -> int:
    return -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
