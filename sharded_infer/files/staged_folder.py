"""Folders that are written under a temporary name, and removed unless they are renamed.

<home>/.staging-<random>/          being written
<home>/.staging-<random>.lock      held by the process that writes it
"""

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import StorageError
from sharded_infer.files.file_lock import lock
from sharded_infer.files.regular_file import open_regular

_PREFIX = ".staging-"
_LOCK = ".lock"


@contextmanager
def staged_folder(home: Path) -> Iterator[Path]:
    """A new folder in `home`, created if missing; removed afterwards unless renamed.

    Folders of killed processes are removed first. Raises StorageError if `home` is not writable.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        sweep(home)
        path, held = _reserve(home)
    except OSError as error:
        raise StorageError(f"{home}: cannot be written: {error.strerror}") from error
    with held:
        try:
            path.mkdir()
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            path.with_suffix(_LOCK).unlink()


def sweep(home: Path) -> None:
    """Remove the staging folders of killed processes; those of living ones stay."""
    for lock_path in home.glob(f"{_PREFIX}*{_LOCK}"):
        try:
            with open_regular(lock_path) as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock_path.unlink(missing_ok=True)
        except OSError:
            # Its process is alive, or another sweep was faster.
            continue


def leftover_bytes(home: Path) -> tuple[list[str], int]:
    """The staging folders of killed processes: their names, and the bytes of their files."""
    names, size = [], 0
    for lock_path in sorted(home.glob(f"{_PREFIX}*{_LOCK}")):
        try:
            with open_regular(lock_path) as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        folder = lock_path.with_suffix("")
        names.append(folder.name)
        size += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return names, size


def _reserve(home: Path) -> tuple[Path, TextIO]:
    """A free name, and its lock file, held for this process's lifetime."""
    while True:
        path = home / f"{_PREFIX}{uuid.uuid4().hex}"
        lock_path = path.with_suffix(_LOCK)
        held = lock_path.open("x")
        # The lock shows a sweep that this process is alive.
        if lock(held.fileno(), lock_path):
            return path, held
        # A sweep came before the lock and took its file for a dead process's.
        held.close()


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Translate OSErrors of writes to StorageError with path, reason and free space."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        home = path if path.exists() else path.parent
        free = f"; {size_text(shutil.disk_usage(home).free)} are free" if home.exists() else ""
        raise StorageError(f"{path}: cannot be written: {error.strerror}{free}") from error
