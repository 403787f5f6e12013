"""Signatures in a repository's folder, in `<model>/signatures/`."""

import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from sharded_infer.files.staged_folder import storage_errors
from sharded_infer.files.tagged_file import read_tagged, replace_tagged
from sharded_infer.repositories.signatures.signature_file import MAX_SIGNATURES_BYTES, SIGNATURES

_NAME = re.compile(r"\.?[0-9a-f]{64}\.json(\.new)?", re.ASCII)


class LocalSignatures:
    """Implements `stored_signatures.StoredSignatures`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def where(self, model: str, name: str) -> str:
        """A file's path."""
        return str(self._path / model / name)

    def read(self, model: str, name: str) -> tuple[bytes, str] | None:
        """A file's content, and its tag."""
        return read_tagged(self._path / model / name, MAX_SIGNATURES_BYTES)

    def replace(self, model: str, name: str, content: bytes, tag: str | None) -> bool:
        """Replace a file if its tag is unchanged; True if replaced."""
        path = self._path / model / name
        with storage_errors(path):
            path.parent.mkdir(exist_ok=True)
        return replace_tagged(path, content, tag, MAX_SIGNATURES_BYTES)

    def leftovers(
        self, model: str, needed: Collection[str], safe_seconds: float
    ) -> tuple[list[str], int]:
        """Old unneeded files and their bytes; relative to the model's folder."""
        folder, names, size = self._path / model / SIGNATURES, [], 0
        # A link could lead to foreign files.
        if folder.is_symlink() or not folder.is_dir():
            return [], 0
        for path in sorted(folder.iterdir()):
            name = f"{SIGNATURES}/{path.name}"
            if name in needed or not _NAME.fullmatch(path.name):
                continue
            # It may be replaced, or removed, meanwhile.
            with suppress(FileNotFoundError):
                about = path.lstat()
                if time.time() - about.st_mtime > safe_seconds:
                    names.append(name)
                    size += about.st_size
        return names, size

    def remove(self, model: str, names: Collection[str]) -> None:
        """Remove the signatures among a model's leftovers."""
        for name in names:
            path = self._path / model / name
            if name.startswith(f"{SIGNATURES}/"):
                with storage_errors(path):
                    path.unlink(missing_ok=True)
