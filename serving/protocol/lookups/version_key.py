"""Versions as lookups name them."""

import hashlib
from typing import NamedTuple

from sharded_infer.artifacts.manifest import Manifest, dump_manifest


class VersionKey(NamedTuple):
    """A version; `manifest` is the `digest_number` of its manifest."""

    model: str
    version: int
    manifest: int


def version_key(manifest: Manifest) -> VersionKey:
    """Key of a version."""
    # Old releases' manifests have no checksum.
    digest = manifest.sha256 or hashlib.sha256(dump_manifest(manifest)).hexdigest()
    return VersionKey(manifest.model, manifest.version, digest_number(digest))


def digest_number(digest: str) -> int:
    """First eight bytes of a SHA-256, little-endian."""
    return int.from_bytes(bytes.fromhex(digest)[:8], "little")
