"""The signatures of a repository's manifests: reading, checks and additions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

from sharded_infer.artifacts.manifest import Manifest, dump_manifest
from sharded_infer.repositories.signatures.keys import SigningKey, sign_with
from sharded_infer.repositories.signatures.signature_file import (
    dump_signatures,
    parse_signatures,
    signatures_name,
)
from sharded_infer.repositories.signatures.trusted_keys import TrustedKeys


@dataclass(frozen=True, slots=True)
class Sealing:
    """Serialization and signing of a new version's manifest.

    Attributes:
        text: stored bytes to copy if the number stays; None: serialize anew.
        sign: returns its signatures by key id.
    """

    text: bytes | None = None
    sign: Callable[[bytes], Mapping[str, bytes]] = lambda _: {}

    @classmethod
    def by(cls, keys: Iterable[SigningKey]) -> Self:
        """Serialize anew, and sign with each key."""
        return cls(sign=partial(sign_with, keys))

    def written(self, manifest: Manifest, number: int) -> bytes:
        """The bytes to store for the manifest under a number."""
        if self.text is not None and number == manifest.version:
            return self.text
        return dump_manifest(replace(manifest, version=number))


UNSIGNED = Sealing()


class StoredSignatures(Protocol):
    """Files of signatures in one storage; StorageError if it is inaccessible."""

    def where(self, model: str, name: str) -> str:
        """A file's path or URL, for display."""

    def read(self, model: str, name: str) -> tuple[bytes, str] | None:
        """A file's content and a tag of it, if there is one."""

    def replace(self, model: str, name: str, content: bytes, tag: str | None) -> bool:
        """Replace a file if its tag is unchanged; True if replaced."""


class ManifestSignatures:
    """Signatures of one repository's manifests, which are passed as stored.

    Each manifest must be signed by one of `trusted`, unless that is None. Methods raise
    SignatureError if the signature file is damaged.
    """

    def __init__(self, stored: StoredSignatures, trusted: TrustedKeys | None) -> None:
        self._stored = stored
        self.trusted = trusted

    def check(self, model: str, text: bytes, where: str) -> None:
        """Refuse a manifest that no trusted key signed; SignatureError names the expected keys."""
        if self.trusted is not None:
            self.trusted.check(text, self.of(model, text), where)

    def of(self, model: str, text: bytes) -> dict[str, bytes]:
        """A manifest's unchecked signatures, by key id."""
        return self._read(model, text)[0]

    def sealed(self, manifest: Manifest, number: int, sealing: Sealing) -> bytes:
        """Store the signatures of a new version's manifest; return the bytes to store for it."""
        text = sealing.written(manifest, number)
        self.add(manifest.model, text, sealing.sign(text))
        return text

    def add(self, model: str, text: bytes, signatures: Mapping[str, bytes]) -> None:
        """Add signatures to a manifest's existing ones, also under concurrent changes."""
        if not signatures:
            return
        while True:
            known, tag = self._read(model, text)
            content = dump_signatures({**known, **signatures})
            if self._stored.replace(model, signatures_name(text), content, tag):
                return

    def _read(self, model: str, text: bytes) -> tuple[dict[str, bytes], str | None]:
        name = signatures_name(text)
        if (found := self._stored.read(model, name)) is None:
            return {}, None
        return parse_signatures(found[0], self._stored.where(model, name)), found[1]
