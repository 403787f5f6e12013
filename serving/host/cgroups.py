"""Control groups (v1 and v2) that limit this process."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """A control group of this process, or its parent; v1 is old and has other file names."""

    folder: Path
    is_old: bool


def groups_of(root: Path, controller: str) -> Iterator[Group]:
    """Groups that limit `memory` or `cpu`, innermost first; root has `proc` and `sys`."""
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        home = mounted / controller if controllers else mounted
        # In a container the place may be missing, except for its root.
        here = home / place.lstrip("/")
        for folder in (here, *here.parents):
            if folder.is_relative_to(home):
                yield Group(folder, bool(controllers))
