"""Upload of a version's missing files."""

from pathlib import Path

from sharded_infer.artifacts.manifest import Manifest
from sharded_infer.progress import Progress, summed_progress
from sharded_infer.repositories.storage.object_store import ObjectStore


def upload_missing(
    store: ObjectStore, folder: str, staged: Path, manifest: Manifest, progress: Progress
) -> None:
    """Upload files that the store lacks, by SHA-256 name and size, into its `folder`.

    `progress` is called with the bytes uploaded. Raises StorageError if the store is unreachable or
    refuses.
    """
    there = {entry.name: entry.bytes for entry in store.entries(folder)}
    missing = {
        record.sha256: name
        for name, record in manifest.files.items()
        if there.get(record.sha256) != record.bytes
    }
    total = sum(manifest.files[name].bytes for name in missing.values())
    sent = summed_progress(progress, "uploading", total)
    for sha256, name in missing.items():
        store.upload(staged / name, f"{folder}/{sha256}", sent)
