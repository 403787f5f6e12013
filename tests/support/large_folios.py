"""File systems of this machine with files in 2 MiB pages."""

import os
import re
from pathlib import Path

_SINCE = {"ext4": (6, 16), "xfs": (5, 18)}


def has_large_folios(folder: Path) -> bool:
    """True if the kernel reads files of a folder in large folios, by its version."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    since = _SINCE.get(file_system_of(folder))
    return found is not None and since is not None and tuple(map(int, found.groups())) >= since


def file_system_of(folder: Path) -> str:
    """Type of a folder's file system, such as ext4; "" if unknown."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    kinds = {line.split()[2]: line.split(" - ")[1].split()[0] for line in lines}
    return kinds.get(number, "")


def drop_cached(path: Path) -> None:
    """Drop a file's clean pages that no process has mapped from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_in_small_pieces(path: Path, content: bytes) -> None:
    """Write a new file as many programs do, so that the page cache has it in small folios."""
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        for first in range(0, len(content), 2**18):
            file.write(content[first : first + 2**18])
