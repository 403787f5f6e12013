"""Signing keys, from the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from sharded_infer.repositories.signatures.keys import read_public_keys


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """A key's files: PEM, PKCS #8 and SubjectPublicKeyInfo."""

    private: Path
    public: Path

    @property
    def key_id(self) -> str:
        return read_public_keys(self.public)[0].key_id


def openssl(*words: object) -> bytes:
    return subprocess.run(
        ["openssl", *map(str, words)],  # noqa: S607 - the system's
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout


def make_key(folder: Path, name: str, algorithm: str = "ed25519") -> KeyFiles:
    files = KeyFiles(folder / f"{name}.pem", folder / f"{name}.pub.pem")
    openssl("genpkey", "-algorithm", algorithm, "-out", files.private)
    openssl("pkey", "-in", files.private, "-pubout", "-out", files.public)
    return files
