"""The files of a release of this tree, for x86-64: built once for all test processes."""

import fcntl
import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from release.__main__ import make_release
from release.toolchain import Processor
from release.wheel import NGHTTP2

ROOT = Path(__file__).parents[2]
_FOLDER = ROOT / "build" / "release-of-tests"
# Tests that need a release: the first waits until it is built.
ASKS_FOR_RELEASE = [
    pytest.mark.skipif(
        not NGHTTP2.is_dir(), reason="libnghttp2's sources are not there: make nghttp2"
    ),
    pytest.mark.timeout(1800),
]


@cache
def released() -> Path:
    """Folder of the files, which are rebuilt after a change of a file in git."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    made = _FOLDER / _tree_digest()
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():
            for old in _FOLDER.glob("*/"):
                shutil.rmtree(old)
            make_release(_FOLDER / "making", [Processor.X86_64])
            (_FOLDER / "making").rename(made)
    return made


def released_wheel() -> Path:
    (wheel,) = released().glob("*.whl")
    return wheel


def _tree_digest() -> str:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    digest = hashlib.sha256()
    for name in filter(None, listed.split("\0")):
        # No release file contains any of these.
        if not name.startswith(("tests/", "docs/", "docker/")) and (ROOT / name).is_file():
            digest.update(f"{name}\0".encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()[:16]
