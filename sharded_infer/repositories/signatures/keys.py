"""Ed25519 keys in PEM files, as `openssl genpkey -algorithm ed25519` writes them.

The signed bytes are `DOMAIN` and the SHA-256 of a version's `manifest.json`, which holds the
model's name, the version's number and the hashes of all other files.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import open_regular, read_regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

# Separates signatures of versions from those for other purposes.
DOMAIN = b"sharded-infer manifest v1\0"
_MAX_KEY_BYTES = 64 * 2**10
_PUBLIC = re.compile(
    rb"-----BEGIN PUBLIC KEY-----[A-Za-z0-9+/=\s]+-----END PUBLIC KEY-----", re.ASCII
)
_ID_DIGITS = 16
_OTHERS = 0o077  # permissions of everybody but a file's owner

_log = logging.getLogger("sharded_infer")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key, with the id of its public key."""

    key_id: str
    _key: "Ed25519PrivateKey" = field(repr=False)

    def sign(self, text: bytes) -> bytes:
        """The 64-byte signature of a manifest as stored."""
        return self._key.sign(_message(text))


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key; `key_id` is 16 hexadecimal digits of the SHA-256 of its 32 bytes."""

    key_id: str
    file: Path
    _key: "Ed25519PublicKey" = field(repr=False)

    def is_signature(self, text: bytes, signature: bytes) -> bool:
        """True if the key verifies this signature of a manifest as stored."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, _message(text))
        except InvalidSignature:
            return False
        return True


def read_signing_key(path: Path) -> SigningKey:
    """Read an unencrypted PEM (PKCS #8) private key; warn if other users can read it.

    Raises InputError if it is unreadable or no key, or the extra `signatures` is not installed.
    """
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    expected = f"{path}: expected an ed25519 private key (PEM, PKCS #8, not encrypted)"
    try:
        with open_regular(path, follow=True) as file:
            is_open = os.fstat(file.fileno()).st_mode & _OTHERS
            content = file.read(_MAX_KEY_BYTES)
        key = load_pem_private_key(content, password=None)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    # A TypeError: it is encrypted. The library's message is omitted: it may quote the file.
    except (ValueError, TypeError, _unsupported()) as error:
        raise InputError(f"{expected}, got none") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{expected}, got a key of another kind")
    if is_open:
        _log.warning("%s: others may read or change this private key: chmod 600 it", path)
    return SigningKey(_id_of(key.public_key()), key)


def read_signing_keys(keys: Iterable[SigningKey | Path | str]) -> tuple[SigningKey, ...]:
    """As `read_signing_key`, for each path; loaded keys are kept."""
    return tuple(k if isinstance(k, SigningKey) else read_signing_key(Path(k)) for k in keys)


def sign_with(keys: Iterable[SigningKey], text: bytes) -> Mapping[str, bytes]:
    """The signatures of a manifest, by key id."""
    return {key.key_id: key.sign(text) for key in keys}


def read_public_keys(path: Path) -> tuple[PublicKey, ...]:
    """Read the public keys of a file, at least one: PEM (SubjectPublicKeyInfo), concatenated.

    Raises InputError if it is unreadable or holds anything else, or the extra `signatures` is not
    installed.
    """
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    expected = f"{path}: expected ed25519 public keys (PEM)"
    try:
        content = read_regular(path, _MAX_KEY_BYTES, follow=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    blocks = _PUBLIC.findall(content)
    # All blocks: a silently skipped one would seem to be trusted.
    if len(blocks) != content.count(b"-----BEGIN"):
        private = b"PRIVATE KEY-----" in content
        raise InputError(f"{expected}, got {'a private key' if private else 'something else'}")
    if not blocks:
        raise InputError(f"{expected}, got none")
    keys = []
    for block in blocks:
        try:
            key = load_pem_public_key(block)
        except (ValueError, _unsupported()) as error:
            raise InputError(f"{expected}, got one that is damaged") from error
        if not isinstance(key, Ed25519PublicKey):
            raise InputError(f"{expected}, got a key of another kind")
        keys.append(PublicKey(_id_of(key), path, key))
    return tuple(keys)


def _message(text: bytes) -> bytes:
    return DOMAIN + hashlib.sha256(text).digest()


def _id_of(key: "Ed25519PublicKey") -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:_ID_DIGITS]


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise InputError(
            "signatures need the package cryptography; pip install 'sharded-infer[signatures]'"
        ) from error


def _unsupported() -> type[Exception]:
    from cryptography.exceptions import UnsupportedAlgorithm

    return UnsupportedAlgorithm
