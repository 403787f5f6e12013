"""The control groups that limit this process, of both generations."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """A group that this process is in, or one above it.

    Attributes:
        folder: its files.
        is_old: whether it is of the first generation, whose files have other names.
    """

    folder: Path
    is_old: bool


def groups_of(root: Path, controller: str) -> Iterator[Group]:
    """The groups that may limit something, the nearest first; those above hold too.

    Args:
        root: where `proc` and `sys` lie.
        controller: what is limited, such as `memory` or `cpu`.
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
