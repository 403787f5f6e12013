"""Cores that this process may use, by its affinity and its control groups' quota."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from serving.host.cgroups import Group, groups_of


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that may be busy all the time; at least one.

    A container limited to 4 processors sees all cores of its machine, but has to wait beyond its
    quota. `root` is the parent of `proc` and `sys`.
    """
    quotas = (cores for group in groups_of(root, "cpu") for cores in _quota(group))
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *quotas])))


def slots_of(workers: int) -> int:
    """A worker's share of the usable cores, at least one."""
    return max(1, usable_cores() // workers)


def _quota(group: Group) -> Iterator[float]:
    """Cores by the group's files; nothing without a limit."""
    folder = group.folder
    try:
        if group.is_old:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        else:
            quota, period = (folder / "cpu.max").read_text().split()
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return
