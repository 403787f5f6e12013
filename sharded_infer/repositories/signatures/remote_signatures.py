"""Signatures in an object store, in `<model>/signatures/`."""

from collections.abc import Collection
from datetime import datetime

from sharded_infer.repositories.signatures.signature_file import MAX_SIGNATURES_BYTES, SIGNATURES
from sharded_infer.repositories.storage.object_store import ObjectStore


class RemoteSignatures:
    """Implements `stored_signatures.StoredSignatures`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def where(self, model: str, name: str) -> str:
        """An object's URL."""
        return self._store.where(f"{model}/{name}")

    def read(self, model: str, name: str) -> tuple[bytes, str] | None:
        """An object's content, and its tag."""
        return self._store.read(f"{model}/{name}", MAX_SIGNATURES_BYTES)

    def replace(self, model: str, name: str, content: bytes, tag: str | None) -> bool:
        """Replace an object if its tag is unchanged; True if replaced."""
        return self._store.replace(f"{model}/{name}", content, tag)

    def leftovers(
        self, model: str, needed: Collection[str], safe_seconds: float, now: datetime
    ) -> tuple[list[str], int]:
        """Old unneeded objects and their bytes, at `now` by the store's clock; relative names."""
        old = {
            f"{SIGNATURES}/{entry.name}": entry.bytes
            for entry in self._store.entries(f"{model}/{SIGNATURES}")
            if entry.changed_at and (now - entry.changed_at).total_seconds() > safe_seconds
        }
        unneeded = [name for name in old if name not in needed]
        return unneeded, sum(old[name] for name in unneeded)
