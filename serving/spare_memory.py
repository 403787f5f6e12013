"""Whether a version fits in the memory that is left, before any of it is loaded."""

from collections.abc import Iterator
from pathlib import Path

from serving.cgroups import groups_of
from sharded_infer.batch_sizes import KERNEL_BYTES
from sharded_infer.errors import CapacityError
from sharded_infer.manifest import Manifest
from sharded_infer.sizes import size_text
from sharded_infer.table_memory import TableMemory

# A group's limit, what it uses, and of its `memory.stat` what the kernel can take back.
_FILES = ("memory.max", "memory.current", "inactive_file")
_OLD_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
# Packed for the matrix library a tower takes a little more than its file: panels are padded.
_PACKED = 1.1
# While it is loaded it lies in memory twice more: as read, and as built.
_LOADING_COPIES = 2


def held_bytes(manifest: Manifest, memory: TableMemory, processes: int) -> int:
    """What a version takes once it is loaded.

        tables + processes * (1.1 * tower + kernels)

    Mapped tables lie once in the page cache. A copy in huge pages belongs to the process that made
    it: what is loaded after the fork is there as often as there are workers.

    Args:
        manifest: the version's.
        memory: where its tables are to lie.
        processes: that load it.
    """
    tables = manifest.table_bytes * (processes if memory is TableMemory.HUGE else 1)
    return tables + processes * (round(_PACKED * _tower_bytes(manifest)) + KERNEL_BYTES)


def needed_bytes(manifest: Manifest, memory: TableMemory, processes: int) -> int:
    """What loading a version takes at most, in a server that is running; see `held_bytes`."""
    held = held_bytes(manifest, memory, processes)
    return held + processes * _LOADING_COPIES * _tower_bytes(manifest)


def available_bytes(root: Path = Path("/")) -> int:
    """What processes may still take: the machine's available memory, or less by a cgroup's limit.

    Args:
        root: where `proc` and `sys` lie.
    """
    groups = (left for _, left in _cgroup_bytes(root))
    return min([_machine_bytes(root, "MemAvailable"), *groups])


def limit_bytes(root: Path = Path("/")) -> int:
    """What processes may take in all: the machine's memory, or less by a cgroup's limit.

    Args:
        root: where `proc` and `sys` lie.
    """
    groups = (limit for limit, _ in _cgroup_bytes(root))
    return min([_machine_bytes(root, "MemTotal"), *groups])


def check_fits(needed: int, available: int, spare: int, what: str) -> None:
    """Refuses what would leave too little.

    Args:
        needed: bytes that it takes.
        available: bytes that there are.
        spare: bytes that must stay free; 0 where nothing else is served yet.
        what: to load, for the message.

    Raises:
        CapacityError: it does not fit; says the figures.
    """
    if needed + spare > available:
        kept = f" and {size_text(spare)} must stay free (--spare-mib)" if spare else ""
        raise CapacityError(
            f"{what} does not fit: it takes {size_text(needed)}{kept}, {size_text(available)} are "
            "available"
        )


def _tower_bytes(manifest: Manifest) -> int:
    return manifest.files[manifest.tower.file].bytes


def _machine_bytes(root: Path, field: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise CapacityError(f"{root / 'proc/meminfo'}: says no {field}")


def _cgroup_bytes(root: Path) -> Iterator[tuple[int, int]]:
    """The limits above this process, and what each leaves."""
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
