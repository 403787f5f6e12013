import hashlib
import logging
import sys
from pathlib import Path

import pytest

from sharded_infer.errors import InputError
from sharded_infer.repositories.signatures.keys import DOMAIN, read_public_keys, read_signing_key
from tests.support.signing_keys import make_key, openssl

TEXT = b'{"model": "ranker"}'


def test_a_signature_is_that_of_openssl_over_what_the_format_says(tmp_path: Path) -> None:
    key = make_key(tmp_path, "key")
    signature = read_signing_key(key.private).sign(TEXT)
    message, theirs, ours = tmp_path / "message", tmp_path / "theirs", tmp_path / "ours"
    message.write_bytes(b"sharded-infer manifest v1\0" + hashlib.sha256(TEXT).digest())
    words = ("-rawin", "-in", message)
    openssl("pkeyutl", "-sign", "-inkey", key.private, *words, "-out", theirs)
    assert theirs.read_bytes() == signature and len(signature) == 64
    ours.write_bytes(signature)
    openssl("pkeyutl", "-verify", "-pubin", "-inkey", key.public, *words, "-sigfile", ours)
    (public,) = read_public_keys(key.public)
    assert public.is_signature(TEXT, theirs.read_bytes())


def test_a_signature_is_of_one_text_by_one_key_for_one_purpose(tmp_path: Path) -> None:
    key, other = make_key(tmp_path, "key"), make_key(tmp_path, "other")
    (public,), (foreign,) = read_public_keys(key.public), read_public_keys(other.public)
    signature = read_signing_key(key.private).sign(TEXT)
    assert public.is_signature(TEXT, signature)
    assert not public.is_signature(TEXT + b" ", signature)
    assert not foreign.is_signature(TEXT, signature)
    (tmp_path / "digest").write_bytes(hashlib.sha256(TEXT).digest())
    words = ("-sign", "-inkey", key.private, "-rawin", "-in", tmp_path / "digest")
    assert DOMAIN and not public.is_signature(TEXT, openssl("pkeyutl", *words))


def test_readable_private_keys_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = make_key(tmp_path, "key")
    key.private.chmod(0o600)
    read_signing_key(key.private)
    assert caplog.messages == []
    key.private.chmod(0o640)
    with caplog.at_level(logging.WARNING):
        read_signing_key(key.private)
    assert f"{key.private}: others may read or change this private key" in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"secret words", None, "encrypted"], ids=["empty", "text", "none", "encrypted"]
)
def test_what_is_no_private_key_is_refused_and_not_quoted(tmp_path: Path, content: object) -> None:
    path, words = tmp_path / "key.pem", "expected an ed25519 private key (PEM, PKCS #8, not encrypt"
    if isinstance(content, bytes):
        path.write_bytes(content)
        words += "ed), got none"
    elif content is None:
        words = "cannot be read: No such file"
    else:
        key = make_key(tmp_path, "open")
        openssl("pkcs8", "-topk8", "-in", key.private, "-passout", "pass:x", "-out", path)
    with pytest.raises(InputError) as refused:
        read_signing_key(path)
    assert f"{path}: {words}" in str(refused.value) and "secret" not in str(refused.value)


@pytest.mark.parametrize("algorithm", ["x25519", "ed448", "rsa"])
def test_keys_of_other_kinds_are_refused(tmp_path: Path, algorithm: str) -> None:
    key = make_key(tmp_path, "key", algorithm)
    with pytest.raises(InputError, match="expected an ed25519 private key .* another kind"):
        read_signing_key(key.private)
    with pytest.raises(InputError, match="expected ed25519 public keys .* another kind"):
        read_public_keys(key.public)


def test_files_without_public_keys_or_with_others_beside_them_are_refused(tmp_path: Path) -> None:
    key = make_key(tmp_path, "key")
    public, path = key.public.read_text(), tmp_path / "keys.pem"
    for content, words in {
        "": "got none",
        key.private.read_text(): "got a private key",
        public + key.private.read_text(): "got a private key",
        public + public[: len(public) // 2]: "got something else",
        public.replace("MCow", "MCo!"): "got something else",
        public.replace("MCow", "MCox"): "got one that is damaged",
    }.items():
        path.write_text(content)
        with pytest.raises(InputError, match=rf"keys.pem: expected ed25519 public keys.*{words}"):
            read_public_keys(path)
    with pytest.raises(InputError, match="expected a regular file, got a folder"):
        read_public_keys(tmp_path)


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make_key(tmp_path, "key")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for read in (read_signing_key, read_public_keys):
        with pytest.raises(InputError, match=r"pip install 'sharded-infer\[signatures\]'"):
            read(key.public)
