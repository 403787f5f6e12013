"""How many cores this process may use: by its affinity, and by the quota of its control groups."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from serving.cgroups import Group, groups_of


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that may be busy all the time, at least one.

    A container that is limited to 4 processors sees all cores of its machine; what it uses beyond
    its quota it waits for.

    Args:
        root: where `proc` and `sys` lie.
    """
    quotas = (cores for group in groups_of(root, "cpu") for cores in _quota(group))
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *quotas])))


def _quota(group: Group) -> Iterator[float]:
    """Cores by a group's files; nothing where it has no limit."""
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
