"""Writes the corpus and the listing of a release: `python -m tests.compatibility.write RELEASE`.

Takes a minute. What was written of the release before is replaced.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from sharded_infer import publish_delta
from tests.compatibility.changed_models import (
    later_values,
    publish_fresh,
    publish_hosts,
    share_requests,
)
from tests.compatibility.corpus import FOLDER, Corpus
from tests.compatibility.plain_corpus import values_of, write_plain
from tests.compatibility.raw_models import BUCKETS, RAW, changes_of_raw, publish_raw
from tests.compatibility.surface import write_listing


def write_corpus(corpus: Corpus) -> None:
    """Writes everything into an empty folder."""
    write_plain(corpus)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sign_key = _make_key(folder, corpus.files)
        request = publish_raw(RAW, corpus.models, folder, sign_key)
        corpus.keep_request("raw", request)
        publish_delta("raw", changes_of_raw(request), corpus.models, sign_keys=[sign_key])
        corpus.keep_request("buckets", publish_raw(BUCKETS, corpus.models, folder, sign_key))
        corpus.keep_request("fresh", publish_fresh(corpus.models, folder, corpus.files))
        corpus.keep_request("hosts", publish_hosts(corpus.models, folder, corpus.files))
    share_requests(corpus.models)
    corpus.keep_scores()
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
    """Writes the release that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", help="such as 0.2.0")
    corpus = Corpus(FOLDER / parser.parse_args().release)
    shutil.rmtree(corpus.folder, ignore_errors=True)
    write_corpus(corpus)
    write_listing(corpus.folder.name)


if __name__ == "__main__":
    main()
