"""Deduplication of a new version's files by hard links to earlier versions."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import FileRecord, Manifest
from sharded_infer.files.regular_file import open_regular
from sharded_infer.progress import Progress

_LINK = ".sharded-infer-link"


def link_equal_files(
    staged: Path, manifest: Manifest, earlier: Iterable[Artifact], progress: Progress
) -> int:
    """Replace staged files by links to equal files of earlier versions; return saved bytes.

    Missing files and links are ignored. `earlier` versions lie on the same file system, the most
    similar first; `progress` gets the bytes compared.
    """
    wanted = {
        (record.sha256, record.bytes): name
        for name, record in manifest.files.items()
        if _is_own_file(staged / name, record.bytes)
    }
    saved, total = 0, sum(size for _, size in wanted)
    if not wanted:
        return 0
    for artifact in earlier:
        for name, record in artifact.manifest.files.items():
            if (key := (record.sha256, record.bytes)) not in wanted:
                continue
            # Rehashed: a file damaged on disk must not become the new version's.
            if _hash(artifact.path / name, record) == record.sha256:
                saved += _link(artifact.path / name, staged / wanted.pop(key), record.bytes)
                progress("comparing with before", saved, total)
        if not wanted:
            break
    return saved


def _is_own_file(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size and path.stat().st_nlink == 1


def _hash(path: Path, record: FileRecord) -> str | None:
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size != record.bytes:
                return None
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _link(source: Path, target: Path, size: int) -> int:
    # Renaming a link over another link to the same file does nothing, and leaves both.
    if source.samefile(target):
        return size
    new = target.with_name(target.name + _LINK)
    try:
        os.link(source, new)
    except OSError:
        # No links on this file system, or too many of this file: the version keeps its own.
        return 0
    new.rename(target)
    return size
