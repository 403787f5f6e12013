"""Trusted public keys, from files that may change."""

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from kernels.wording import counted
from sharded_infer.errors import InputError, SignatureError
from sharded_infer.repositories.signatures.keys import PublicKey, read_public_keys

_log = logging.getLogger("sharded_infer")
_NAMED = 8  # of foreign keys, in a refusal
_Seen = tuple[int, int, int]


class TrustedKeys:
    """Public keys of files, reread after changes. Thread-safe, and usable after a fork."""

    def __init__(self, files: Iterable[Path | str]) -> None:
        """Read the files, at least one; InputError as `read_public_keys`."""
        self._files = {
            Path(file): (_seen(Path(file)), read_public_keys(Path(file))) for file in files
        }
        # Errors of changed files, each logged once.
        self._told: dict[Path, str] = {}
        self._lock = threading.Lock()

    def check(self, text: bytes, signatures: Mapping[str, bytes], where: str) -> None:
        """Refuse a manifest that no trusted key signed; SignatureError names the expected keys."""
        trusted = self._current()
        signing = [key for key in trusted if key.key_id in signatures]
        if any(key.is_signature(text, signatures[key.key_id]) for key in signing):
            return
        expected = ", ".join(f"{key.key_id} ({key.file})" for key in trusted)
        if signing:
            raise SignatureError(
                f"{where}: altered: the signature by key {signing[0].key_id} "
                f"({signing[0].file}) is of something else"
            )
        got = " and ".join(f"one by {key_id}" for key_id in list(signatures)[:_NAMED]) or "none"
        raise SignatureError(f"{where}: expected a signature by key {expected}, got {got}")

    def _current(self) -> list[PublicKey]:
        with self._lock:
            for file, (seen, _) in list(self._files.items()):
                try:
                    if (now := _seen(file)) == seen:
                        continue
                    keys = read_public_keys(file)
                except InputError as error:
                    if self._told.get(file) != str(error):
                        self._told[file] = str(error)
                        _log.error("the trusted keys stay as they were: %s", error)
                    continue
                self._told.pop(file, None)
                self._files[file] = now, keys
                _log.info("%s: read anew: %s", file, counted(len(keys), "trusted key"))
            return [key for _, keys in self._files.values() for key in keys]


def _seen(file: Path) -> _Seen:
    """Metadata that changes with a file; InputError if there is no such file."""
    try:
        about = os.stat(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    return about.st_mtime_ns, about.st_size, about.st_ino
