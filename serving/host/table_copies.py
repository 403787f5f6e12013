"""Copies of table files in huge pages, one for all processes of a server."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import TypeAdapter
from torch import Tensor

from serving.host.shared_document import LockedDocument
from sharded_infer.artifacts.shared_pages import (
    Place,
    copy_to_shared_pages,
    open_shared_pages,
    why_not_shared,
)
from sharded_infer.errors import ArtifactError, InternalError

# Unwritten pages cost no memory.
_CAPACITY = 4 * 2**20
_PLACES: TypeAdapter[dict[str, list[Place]]] = TypeAdapter(dict[str, list[Place]])


_log = logging.getLogger("sharded_infer")


def shared_copies(workers: int) -> "TableCopies | None":
    """Copies of several processes; None for one process, or if this kernel cannot share them."""
    if workers == 1:
        return None
    if reason := why_not_shared():
        _log.info(
            "huge pages cannot be shared here (%s): with memory = huge, versions loaded after the "
            "start are copied by each worker",
            reason,
        )
        return None
    return TableCopies()


class TableCopies:
    """Places of the open copies of files; create it before any fork.

    The first process that needs a file copies it, and the others map that copy. It stays for as
    long as one of them does.
    """

    def __init__(self) -> None:
        # By file: every process that has its copy open.
        self._places = LockedDocument(_CAPACITY, _PLACES, {})

    def copy(self, path: Path, on_read: Callable[[int], None]) -> Tensor:
        """Map a file's copy as read-only uint8 `[bytes of the file]`, or make it.

        Waits while another process makes one. Calls `on_read` with the bytes of each step.

        Raises:
            ArtifactError: the file cannot be read.
            CapacityError: there is not enough memory; gives the size.
        """
        memory: Tensor | None = None

        # The lock is held meanwhile: the death of this process ends it, and nothing is recorded.
        def add(places: dict[str, list[Place]]) -> dict[str, list[Place]]:
            nonlocal memory
            known = _open_places(places)
            name, size = _identity(path)
            found = (open_shared_pages(place, size) for place in known.get(name, ()))
            pages = next(filter(None, found), None) or copy_to_shared_pages(path, on_read)
            memory = pages.memory
            return {**known, name: [*known.get(name, ()), pages.place]}

        self._places.change(add)
        if memory is None:
            raise InternalError(f"{path}: no copy came of it")
        return memory

    def held_bytes(self, paths: Iterable[Path]) -> int:
        """Bytes of copied files, after copies in progress; ArtifactError for unreadable files."""
        held = 0

        def count(places: dict[str, list[Place]]) -> dict[str, list[Place]]:
            nonlocal held
            known = _open_places(places)
            identities = map(_identity, paths)
            held = sum(size for name, size in identities if name in known)
            return known

        self._places.change(count)
        return held


def _open_places(places: dict[str, list[Place]]) -> dict[str, list[Place]]:
    found = {name: [place for place in some if place.is_open()] for name, some in places.items()}
    return {name: some for name, some in found.items() if some}


def _identity(path: Path) -> tuple[str, int]:
    """Identity of a file's contents, equal for links to one file, and its bytes."""
    try:
        status = path.lstat()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be copied to huge pages: {error}") from error

    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return " ".join(map(str, numbers)), status.st_size
