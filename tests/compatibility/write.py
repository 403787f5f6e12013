"""Writes the corpus and the listing of this release: `python -m tests.compatibility.write`.

Takes a minute. What was written of this release is replaced; those before it stay as they are.
"""

import importlib.metadata
import sys
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from packaging.version import Version

from sharded_infer import publish_delta
from tests.compatibility.archive import archive_of, pack
from tests.compatibility.changed_models import (
    later_values,
    publish_fresh,
    publish_hosts,
    share_requests,
)
from tests.compatibility.corpus import FOLDER, Corpus, releases
from tests.compatibility.messages import keep_messages
from tests.compatibility.ordered_models import publish_ordered
from tests.compatibility.plain_corpus import values_of, write_plain
from tests.compatibility.raw_models import BUCKETS, RAW, changes_of_raw, publish_raw
from tests.compatibility.sequence_models import publish_histories
from tests.compatibility.surface import write_listing


def write_corpus(corpus: Corpus, measured: Path | None = None) -> None:
    """Writes everything into an empty folder; arguments are those of `write_plain`."""
    write_plain(corpus, measured)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sign_key = _make_key(folder, corpus.files)
        request = publish_raw(RAW, corpus.models, folder, sign_key)
        corpus.keep_request("raw", request)
        publish_delta("raw", changes_of_raw(request), corpus.models, sign_keys=[sign_key])
        corpus.keep_request("buckets", publish_raw(BUCKETS, corpus.models, folder, sign_key))
        corpus.keep_request("fresh", publish_fresh(corpus.models, folder, corpus.files))
        corpus.keep_request("hosts", publish_hosts(corpus.models, folder, corpus.files))
        corpus.keep_request("histories", publish_histories(corpus.models, folder))
        corpus.keep_request("ordered", publish_ordered(corpus.models, folder, corpus.files))
    share_requests(corpus.models)
    corpus.keep_scores()
    keep_messages(corpus)
    corpus.keep_values(values_of(corpus) | later_values(corpus))


def _make_key(folder: Path, files: Path) -> Path:
    """A key that signs, which is not kept, and its public key, which is."""
    key, path = Ed25519PrivateKey.generate(), folder / "key.pem"
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (files / "publisher.pub.pem").write_bytes(public)
    return path


def main() -> None:
    """Writes the release that the project's version names, unless there is a later one."""
    release = importlib.metadata.version("sharded-infer")
    newest = releases()[-1]
    if Version(release) < Version(newest):
        sys.exit(f"sharded-infer {release} is installed, expected {newest} or later: make setup")
    with tempfile.TemporaryDirectory() as scratch:
        written = Corpus(Path(scratch) / release)
        write_corpus(written)
        pack(written.folder, archive_of(FOLDER, release))
    write_listing(release)


if __name__ == "__main__":
    main()
