"""Copy of a version to another repository."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from sharded_infer.artifacts.artifact import Artifact, open_listed, verify_files
from sharded_infer.artifacts.manifest import FileRecord, parse_manifest
from sharded_infer.errors import StorageError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import SigningKey, sign_with
from sharded_infer.repositories.signatures.manifest_signatures import Sealing

_COPY_BYTES = 2 * 2**20  # the page cache keeps such blocks in huge pages


def copy_version(
    source: Repository,
    model: str,
    version: int | None,
    target: Repository,
    *,
    same_version: bool = False,
    keys: Sequence[SigningKey] = (),
    progress: Progress = no_progress,
) -> int:
    """Copy and verify a version, then publish it; return its number in the target.

    With `same_version` (else the next free number) the copy keeps its manifest to the byte, and its
    signatures. Otherwise only `keys` sign it, since signatures cover the number. `progress` is
    called with the current step and its progress.

    Raises:
        NotFoundError: no such version.
        ArtifactError: it is damaged, or its number is taken in the target.
        StorageError: an inaccessible repository or a full disk.
    """
    folder = source.fetch(model, version, progress)
    try:
        text = source.manifest_text(model, int(folder.name))
        manifest = parse_manifest(text, source.where(model, int(folder.name)))
        signatures = source.signatures.of(model, text)

        def sign(copied: bytes) -> Mapping[str, bytes]:
            kept = signatures if copied == text else {}
            return {**kept, **sign_with(keys, copied)}

        sealing = Sealing(text if same_version else None, sign)
        # Links only during an upload: a permanent copy has its own files.
        link = target.is_remote
        with target.staging(model) as staged:
            total, done = sum(record.bytes for record in manifest.files.values()), 0
            for name, record in manifest.files.items():
                _place(folder / name, staged / name, record, link=link)
                done += record.bytes
                progress("copying", done, total)
            verify_files(Artifact(staged, manifest), progress)
            number = manifest.version if same_version else None
            path = target.commit(
                staged, manifest, version=number, sealing=sealing, progress=progress
            )
            return int(path.name)
    finally:
        source.release(folder)


def _place(source: Path, target: Path, record: FileRecord, *, link: bool) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if link and _linked(source, target):
            return
        with open_listed(source, record) as read, target.open("xb") as written:
            shutil.copyfileobj(read, written, _COPY_BYTES)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror}") from error


def _linked(source: Path, target: Path) -> bool:
    try:
        # A symbolic link stays one, and is refused when the copy is verified.
        os.link(source, target, follow_symlinks=False)
    except OSError:
        # Another file system, or one without links.
        return False
    return True
