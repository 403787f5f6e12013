import logging
from pathlib import Path

import pytest

from sharded_infer.errors import SignatureError
from sharded_infer.repositories.signatures.keys import read_signing_key
from sharded_infer.repositories.signatures.trusted_keys import TrustedKeys
from tests.support.signing_keys import KeyFiles, make_key

TEXT = b'{"model": "ranker"}'


def signatures(*keys: KeyFiles, text: bytes = TEXT) -> dict[str, bytes]:
    return {key.key_id: read_signing_key(key.private).sign(text) for key in keys}


def replace_file(path: Path, content: str) -> None:
    new = path.with_name("new")
    new.write_text(content)
    new.replace(path)


def test_a_signature_by_any_trusted_key_is_enough(tmp_path: Path) -> None:
    old, new, foreign = (make_key(tmp_path, name) for name in ("old", "new", "foreign"))
    trusted = TrustedKeys([old.public, new.public])
    for signing in ((old,), (new,), (old, new), (new, foreign)):
        trusted.check(TEXT, signatures(*signing), "here")


def test_a_refusal_names_what_was_expected_and_what_came(tmp_path: Path) -> None:
    old, new, foreign = (make_key(tmp_path, name) for name in ("old", "new", "foreign"))
    trusted = TrustedKeys([old.public, new.public])
    expected = (
        f"models/ranker/3/manifest.json: expected a signature by key {old.key_id} "
        f"({old.public}), {new.key_id} ({new.public}), got "
    )
    for signing, got in (((), "none"), ((foreign,), f"one by {foreign.key_id}")):
        with pytest.raises(SignatureError) as refused:
            trusted.check(TEXT, signatures(*signing), "models/ranker/3/manifest.json")
        assert str(refused.value) == expected + got
    with pytest.raises(SignatureError, match=f"altered: .* by key {old.key_id} .*something else"):
        trusted.check(TEXT + b" ", signatures(old), "here")


def test_changed_key_files_are_read_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    keys = tmp_path / "keys.pem"
    keys.write_text(old.public.read_text())
    trusted = TrustedKeys([keys])
    with pytest.raises(SignatureError):
        trusted.check(TEXT, signatures(new), "here")
    caplog.set_level(logging.INFO)
    replace_file(keys, old.public.read_text() + new.public.read_text())
    for signing in (old, new):
        trusted.check(TEXT, signatures(signing), "here")
    assert caplog.messages == [f"{keys}: read anew: 2 trusted keys"]
    replace_file(keys, new.public.read_text())
    trusted.check(TEXT, signatures(new), "here")
    with pytest.raises(SignatureError):
        trusted.check(TEXT, signatures(old), "here")


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = make_key(tmp_path, "key")
    keys = tmp_path / "keys.pem"
    keys.write_text(key.public.read_text())
    trusted = TrustedKeys([keys])
    for spoil, words in ((lambda: replace_file(keys, "x"), "got none"), (keys.unlink, "No such")):
        caplog.clear()
        spoil()
        for _ in range(3):
            trusted.check(TEXT, signatures(key), "here")
        (told,) = caplog.messages
        assert told.startswith("the trusted keys stay as they were: ") and words in told
    replace_file(keys, make_key(tmp_path, "other").public.read_text())
    with pytest.raises(SignatureError):
        trusted.check(TEXT, signatures(key), "here")
