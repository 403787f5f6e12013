"""The signatures of manifests in a repository: read, checked and added."""

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
    """How the manifest of a new version is written and signed.

    Attributes:
        text: as it is stored elsewhere, if its number stays; None: it is written anew.
        sign: returns its signatures by key id.
    """

    text: bytes | None = None
    sign: Callable[[bytes], Mapping[str, bytes]] = lambda _: {}

    @classmethod
    def by(cls, keys: Iterable[SigningKey]) -> Self:
        """Written anew and signed by each key."""
        return cls(sign=partial(sign_with, keys))

    def written(self, manifest: Manifest, number: int) -> bytes:
        """The manifest under a number, as it is to be stored."""
        if self.text is not None and number == manifest.version:
            return self.text
        return dump_manifest(replace(manifest, version=number))


UNSIGNED = Sealing()


class StoredSignatures(Protocol):
    """Files of signatures in one storage.

    Errors: StorageError if the storage cannot be read or written.
    """

    def where(self, model: str, name: str) -> str:
        """A file's path or URL, as people write it."""

    def read(self, model: str, name: str) -> tuple[bytes, str] | None:
        """A file's content and a tag of it, if there is one."""

    def replace(self, model: str, name: str, content: bytes, tag: str | None) -> bool:
        """Replaces a file if its tag is unchanged; returns whether it did."""


class ManifestSignatures:
    """Signatures of one repository's manifests. Manifests are given as they are stored.

    Attributes:
        trusted: of which each manifest must have a signature; None: it need not have any.
    """

    def __init__(self, stored: StoredSignatures, trusted: TrustedKeys | None) -> None:
        self._stored = stored
        self.trusted = trusted

    def check(self, model: str, text: bytes, where: str) -> None:
        """Refuses a manifest that no trusted key has signed.

        Args:
            where: its name in errors.

        Raises:
            SignatureError: says which keys were expected, and what there is.
        """
        if self.trusted is not None:
            self.trusted.check(text, self.of(model, text), where)

    def of(self, model: str, text: bytes) -> dict[str, bytes]:
        """A manifest's signatures, by key id; none are checked.

        Raises:
            SignatureError: their file is damaged.
        """
        return self._read(model, text)[0]

    def sealed(self, manifest: Manifest, number: int, sealing: Sealing) -> bytes:
        """A new version's manifest as it is to be stored; its signatures are stored already.

        Raises:
            SignatureError: the file of those that it has is damaged.
        """
        text = sealing.written(manifest, number)
        self.add(manifest.model, text, sealing.sign(text))
        return text

    def add(self, model: str, text: bytes, signatures: Mapping[str, bytes]) -> None:
        """Adds signatures to those that a manifest has, also under concurrent changes.

        Raises:
            SignatureError: the file of those that it has is damaged.
        """
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
