"""Files of the repository for a release."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from release.commands import ReleaseError, run
from release.toolchain import ROOT


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Temporary folder, for builds to write into, with all tracked files and git's modes."""
    listed = run(["git", "ls-files", "-z", "--stage"], ROOT)
    with TemporaryDirectory() as folder:
        for entry in filter(None, listed.split("\0")):
            told, name = entry.split("\t", 1)
            if (ROOT / name).is_file():
                file = Path(folder) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes((ROOT / name).read_bytes())
                file.chmod(0o755 if told.startswith("100755") else 0o644)
        yield Path(folder)


def check_committed() -> None:
    """Raises ReleaseError if a tracked file has uncommitted changes."""
    if changed := run(["git", "status", "--porcelain", "--untracked-files=no"], ROOT):
        raise ReleaseError(f"a release is made of a commit; these files were changed:\n{changed}")


def commit_epoch() -> int:
    """Time of the commit, in seconds since 1970, and of all files of a release."""
    return int(run(["git", "log", "-1", "--format=%ct"], ROOT))


def project_version() -> str:
    """Version in pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise ReleaseError("pyproject.toml: no version")
    return found[1]
