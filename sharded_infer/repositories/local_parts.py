"""Parts in a local folder, stored by a rename.

<repository>/<model>/.part-<name>/part.json      written last
<repository>/<model>/.part-<name>/tables/...     ranges of table files, under the files' names
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.errors import NotFoundError, StorageError
from sharded_infer.files.regular_file import flush, read_blocks, read_regular
from sharded_infer.files.staged_folder import staged_folder, storage_errors
from sharded_infer.progress import Progress
from sharded_infer.repositories.stored_parts import MAX_RECORD_BYTES
from sharded_infer.repositories.stored_versions import Leftovers

_PREFIX = ".part-"
_RECORD = "part.json"


class LocalParts:
    """Parts in a folder; implements `stored_parts.StoredParts`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self, model: str) -> list[str]:
        """Names of the model's parts, sorted."""
        return sorted(
            folder.name.removeprefix(_PREFIX)
            for folder in self._folders(model)
            if (folder / _RECORD).is_file()
        )

    def where(self, model: str, name: str) -> str:
        """A part's folder, for display."""
        return str(self._folder(model, name))

    def store(
        self,
        model: str,
        name: str,
        record: bytes,
        staged: Path,
        files: Mapping[str, FileRecord],
        _progress: Progress,
    ) -> None:
        """Flush everything to disk, then rename."""
        folder = self._folder(model, name)
        with storage_errors(folder):
            (staged / _RECORD).write_bytes(record)
            for path in (*staged.rglob("*"), staged):
                flush(path)
            if not _renamed(staged, folder):
                # One file at a time: a concurrent reader always finds all of them.
                for file in (*files, _RECORD):
                    (folder / file).parent.mkdir(exist_ok=True)
                    (staged / file).replace(folder / file)
            flush(folder.parent)

    def record(self, model: str, name: str) -> bytes | None:
        """A part's record; None if there is no such part."""
        path = self._folder(model, name) / _RECORD
        try:
            return read_regular(path, MAX_RECORD_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error

    def blocks(self, model: str, name: str, file: str, _expected: FileRecord) -> Iterator[bytes]:
        """A file's bytes."""
        path = self._folder(model, name) / file
        try:
            yield from read_blocks(path)
        except FileNotFoundError as error:
            raise NotFoundError(f"{path}: no such file") from error
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error

    def link(self, model: str, name: str, file: str, target: Path) -> bool:
        """Make a hard link; False if unsupported, or if there is no such file."""
        try:
            os.link(self._folder(model, name) / file, target, follow_symlinks=False)
        except OSError:
            return False
        return True

    def remove(self, model: str, name: str) -> None:
        """Remove a part."""
        folder = self._folder(model, name)
        # One rename makes it disappear; the rest of a killed removal is swept as staging is.
        with storage_errors(folder), staged_folder(folder.parent) as leaving:
            if folder.exists():
                folder.rename(leaving / name)

    def leftovers(self, model: str, safe_seconds: float) -> Leftovers:
        """Parts of at least that age."""
        names, size = [], 0
        for folder in self._folders(model):
            # It may be joined, and removed, meanwhile.
            with suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > safe_seconds:
                    size += sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
                    names.append(folder.name)
        return Leftovers(tuple(names), size)

    def remove_leftovers(self, model: str, leftovers: Leftovers) -> None:
        """Remove the parts among the leftovers."""
        for name in leftovers.names:
            if name.startswith(_PREFIX):
                self.remove(model, name.removeprefix(_PREFIX))

    def _folder(self, model: str, name: str) -> Path:
        return self._path / model / f"{_PREFIX}{name}"

    def _folders(self, model: str) -> list[Path]:
        return sorted((self._path / model).glob(f"{_PREFIX}*"))


def _renamed(staged: Path, folder: Path) -> bool:
    try:
        staged.rename(folder)
    except OSError:
        if folder.is_dir():
            return False
        raise
    return True
