"""A FUSE file system that shows a folder, and whose reads of table files fail on demand.

It runs in a separate process:

    python -m tests.support.faulty_disk FOLDER MOUNT MODE

MODE is a file: `ok`; `stall`: reads of table files wait for another mode; or the name of an error
that ends them.
"""

import ctypes.util
import errno
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import until

TABLES = "tables"
STALL = "stall"


def refusal() -> str | None:
    """Reason why there is no such file system here; None if there is."""
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed"
    if not any(map(ctypes.util.find_library, ("fuse3", "fuse"))):
        return "libfuse is not installed"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    return None


class FaultyDisk:
    def __init__(self, path: Path, mode: Path) -> None:
        self.path, self._mode = path, mode
        self.says("ok")

    def says(self, mode: str) -> None:
        """Switch reads of table files to another mode, at once."""
        new = self._mode.with_suffix(".new")
        new.write_text(mode)
        new.replace(self._mode)


@contextmanager
def faulty_disk(folder: Path, work: Path) -> Iterator[FaultyDisk]:
    disk = FaultyDisk(work / "disk", work / "mode")
    disk.path.mkdir()
    line = [sys.executable, "-m", "tests.support.faulty_disk"]
    with (work / "disk.log").open("w") as log:
        arguments = map(str, (folder, disk.path, work / "mode"))
        process = subprocess.Popen([*line, *arguments], stderr=log)
    try:
        until(lambda: os.path.ismount(disk.path), "the file system is mounted")
        yield disk
    finally:
        disk.says("ok")
        # The process ends with the last mount.
        subprocess.run(["/bin/umount", "--lazy", str(disk.path)], check=False)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serve(folder: str, mount: str, mode: Path) -> None:
    import mfusepy

    class Passed(mfusepy.Operations):  # type: ignore[misc, name-defined]
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.lstat(folder + path)
            names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")
            times = ("st_atime", "st_mtime", "st_ctime")
            return {name: getattr(found, name) for name in names} | {
                name: getattr(found, f"{name}_ns") for name in times
            }

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(folder + path)]

        def readlink(self, path: str) -> str:
            return os.readlink(folder + path)

        def open(self, path: str, flags: int) -> int:
            return os.open(folder + path, os.O_RDONLY)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            if f"/{TABLES}/" in path:
                while (says := mode.read_text()) == STALL:
                    time.sleep(0.02)
                if says != "ok":
                    raise mfusepy.FuseOSError(getattr(errno, says))
            return os.pread(fh, size, offset)

    mfusepy.FUSE(Passed(), mount, foreground=True, ro=True, allow_other=False)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
