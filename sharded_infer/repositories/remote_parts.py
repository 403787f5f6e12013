"""Parts in an object store.

    <repository>/<model>/parts/<name>.json           a part's record, written last
    <repository>/<model>/files/<sha256>              its files, as those of versions

Publishers may lack permission to remove objects, so garbage collection removes old parts.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress, summed_progress
from sharded_infer.repositories.storage.object_store import ObjectStore
from sharded_infer.repositories.storage.remote_file import read_parts
from sharded_infer.repositories.stored_parts import MAX_RECORD_BYTES

PARTS = "parts"
FILES = "files"
_ENDING = ".json"
_RECORD = "part.json"


class RemoteParts:
    """Parts in an object store; implements `stored_parts.StoredParts`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def names(self, model: str) -> list[str]:
        """Names of the model's parts, sorted."""
        entries = self._store.entries(f"{model}/{PARTS}")
        return [e.name.removesuffix(_ENDING) for e in entries if e.name.endswith(_ENDING)]

    def where(self, model: str, name: str) -> str:
        """The URL of a part's record."""
        return self._store.where(_key(model, name))

    def store(
        self,
        model: str,
        name: str,
        record: bytes,
        staged: Path,
        files: Mapping[str, FileRecord],
        progress: Progress,
    ) -> None:
        """Upload the files, then the record. All are uploaded again, which renews their age."""
        total = sum(file.bytes for file in files.values())
        sent = summed_progress(progress, "uploading", total)
        for file, its in files.items():
            self._store.upload(staged / file, f"{model}/{FILES}/{its.sha256}", sent)
        (staged / _RECORD).write_bytes(record)
        self._store.upload(staged / _RECORD, _key(model, name), lambda _: None)

    def record(self, model: str, name: str) -> bytes | None:
        """A part's record; None if there is no such part."""
        read = self._store.read(_key(model, name), MAX_RECORD_BYTES)
        return None if read is None else read[0]

    def blocks(self, model: str, _name: str, file: str, expected: FileRecord) -> Iterator[bytes]:
        """A file's bytes; fewer than expected if its object is shorter."""
        key = f"{model}/{FILES}/{expected.sha256}"
        if (found := self._store.find(key)) is None:
            raise NotFoundError(f"{self._store.where(key)} ({file}): no such object")
        yield from read_parts(
            lambda begin, end: self._store.read_range(key, begin, end), 0, found.bytes
        )

    def link(self, _model: str, _name: str, _file: str, _target: Path) -> bool:
        """Always False: a store's objects are not local files."""
        return False

    def remove(self, _model: str, _name: str) -> None:
        """Do nothing: garbage collection removes parts."""

    def leftovers(self, model: str, safe_seconds: float, now: datetime) -> list[str]:
        """Records of at least that age, by the store's clock; relative to the model's folder."""
        return [
            f"{PARTS}/{entry.name}"
            for entry in self._store.entries(f"{model}/{PARTS}")
            if entry.changed_at and (now - entry.changed_at).total_seconds() > safe_seconds
        ]


def _key(model: str, name: str) -> str:
    return f"{model}/{PARTS}/{name}{_ENDING}"
