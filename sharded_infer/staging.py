"""Folders that are written beside their place, and gone unless they are renamed into it.

<home>/.staging-<random>/          being written
<home>/.staging-<random>.lock      held by the process that writes it
"""

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = ".staging-"
_LOCK = ".lock"


@contextmanager
def staged_folder(home: Path) -> Iterator[Path]:
    """A new folder in `home`, which is made if need be; gone afterwards unless renamed.

    Folders that killed processes left behind are removed first.
    """
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    while True:
        path = home / f"{_PREFIX}{uuid.uuid4().hex}"
        lock_path = path.with_suffix(_LOCK)
        with lock_path.open("x") as lock:
            # Held while this process lives: how a sweep tells the living from the dead.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not lock_path.exists():
                # A sweep came before the lock and took its file for a dead process's.
                continue
            try:
                path.mkdir()
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
                lock_path.unlink()
            return


def _sweep(home: Path) -> None:
    for lock_path in home.glob(f"{_PREFIX}*{_LOCK}"):
        try:
            with lock_path.open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock_path.unlink(missing_ok=True)
        except OSError:
            # Its process is alive, or another sweep was faster.
            continue
