"""Memory available to processes: the machine's, or less by a cgroup's limit."""

from collections.abc import Iterator
from pathlib import Path

from serving.host.cgroups import groups_of
from sharded_infer.errors import CapacityError

# A group's limit, its usage, and the part in `memory.stat` that the kernel can reclaim.
_FILES = ("memory.max", "memory.current", "inactive_file")
_OLD_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes still available to processes; `root` is the parent of `proc` and `sys`."""
    groups = (left for _, left in _cgroup_bytes(root))
    return min([_machine_bytes(root, "MemAvailable"), *groups])


def limit_bytes(root: Path = Path("/")) -> int:
    """Bytes that processes may use in all; `root` is the parent of `proc` and `sys`."""
    groups = (limit for limit, _ in _cgroup_bytes(root))
    return min([_machine_bytes(root, "MemTotal"), *groups])


def _machine_bytes(root: Path, field: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise CapacityError(f"{root / 'proc/meminfo'}: says no {field}")


def _cgroup_bytes(root: Path) -> Iterator[tuple[int, int]]:
    for group in groups_of(root, "memory"):
        yield from _left_in(group.folder, _OLD_FILES if group.is_old else _FILES)


def _left_in(folder: Path, files: tuple[str, str, str]) -> Iterator[tuple[int, int]]:
    limit_file, used_file, reclaimable = files
    try:
        limit, used = ((folder / name).read_text().strip() for name in (limit_file, used_file))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if limit != "max":
        yield int(limit), int(limit) - int(used) + int(stat.get(reclaimable, 0))
