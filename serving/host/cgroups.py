"""The control groups (v1 and v2) that limit this process."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """A control group of this process, or a parent of it.

    Attributes:
        is_old: cgroup v1, whose files have other names.
    """

    folder: Path
    is_old: bool


def groups_of(root: Path, controller: str) -> Iterator[Group]:
    """The groups that may limit a resource, the innermost first; all of them apply.

    Args:
        root: parent of `proc` and `sys`.
        controller: such as `memory` or `cpu`.
    """
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
        # In a container the place may not be there, only its root.
        here = home / place.lstrip("/")
        for folder in (here, *here.parents):
            if folder.is_relative_to(home):
                yield Group(folder, bool(controllers))
