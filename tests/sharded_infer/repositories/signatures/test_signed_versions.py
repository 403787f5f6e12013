import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sharded_infer.errors import SignatureError
from sharded_infer.repositories.garbage_collection import collect
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import (
    SigningKey,
    read_signing_key,
    read_signing_keys,
    sign_with,
)
from sharded_infer.repositories.signatures.manifest_signatures import Sealing
from sharded_infer.repositories.signatures.signature_file import signatures_name
from sharded_infer.repositories.version_copy import copy_version
from tests.support.publisher import Publisher
from tests.support.s3_server import BUCKET, S3Server
from tests.support.signing_keys import KeyFiles, make_key


@pytest.fixture
def key(tmp_path: Path) -> KeyFiles:
    return make_key(tmp_path, "key")


def signed_by(repository: Repository, version: int) -> set[str]:
    return set(repository.signatures.of("small", repository.manifest_text("small", version)))


def publish_signed(publish_copy: Publisher, repository: Repository, *keys: KeyFiles) -> int:
    read = read_signing_keys(key.private for key in keys)
    return publish_copy(repository, sealing=Sealing(sign=partial(sign_with, read)))


def test_a_version_that_a_trusted_key_signed_is_read_and_others_are_not(
    stored: Repository, publish_copy: Publisher, key: KeyFiles, tmp_path: Path
) -> None:
    assert publish_signed(publish_copy, stored, key) == 1
    assert publish_copy(stored) == 2
    assert publish_signed(publish_copy, stored, make_key(tmp_path, "foreign")) == 3
    trusting = Repository(stored.location, trusted_keys=[key.public])
    assert trusting.versions("small") == [1, 2, 3]
    methods: list[Callable[[str, int], object]] = [
        trusting.open, trusting.manifest, trusting.manifest_text, trusting.fetch, trusting.verify,
        lambda model, version: trusting.fetch_rows(model, version, ["tower.pt2"], ()),
    ]  # fmt: skip
    for method in methods:
        method("small", 1)
        for version, got in ((2, "none"), (3, "one by ")):
            with pytest.raises(
                SignatureError,
                match=f"small/{version}/manifest.json: expected a signature by key "
                f"{key.key_id} .*, got {got}",
            ):
                method("small", version)
    # Nobody who names no keys notices.
    assert stored.verify("small", 1) == stored.verify("small", 2) > 0


def test_nothing_of_an_untrusted_version_is_fetched(
    publish_copy: Publisher, s3: S3Server, s3_url: str, key: KeyFiles
) -> None:
    publish_copy(Repository(s3_url))
    trusting = Repository(s3_url, trusted_keys=[key.public])
    s3.requests.clear()
    with pytest.raises(SignatureError):
        trusting.fetch("small", 1)
    read = {path.partition(f"{BUCKET}/")[2] for method, path, _ in s3.requests if method == "GET"}
    assert read and not [path for path in read if "/files/" in path]


def test_a_version_is_signed_before_it_is_there(
    publish_copy: Publisher, s3: S3Server, s3_url: str, key: KeyFiles
) -> None:
    publish_signed(publish_copy, Repository(s3_url), key)
    put = [path for method, path, _ in s3.requests if method == "PUT"]
    assert "/signatures/" in put[-2] and put[-1].endswith("small/1/manifest.json")


def test_signatures_are_added_to_a_published_version(
    stored: Repository, publish_copy: Publisher, tmp_path: Path
) -> None:
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    publish_signed(publish_copy, stored, old)
    text = stored.manifest_text("small", 1)
    for _ in range(2):
        stored.signatures.add("small", text, {new.key_id: read_signing_key(new.private).sign(text)})
    assert signed_by(stored, 1) == {old.key_id, new.key_id}
    for trusted in (old, new):
        Repository(stored.location, trusted_keys=[trusted.public]).fetch("small", 1)


def test_a_copy_keeps_signatures_with_its_number_and_has_none_with_another(
    stored: Repository, publish_copy: Publisher, key: KeyFiles, tmp_path: Path
) -> None:
    target = Repository(tmp_path / "target")
    publish_copy(stored)
    publish_signed(publish_copy, stored, key)
    copy_version(stored, "small", 2, target, same_version=True)
    assert target.manifest_text("small", 2) == stored.manifest_text("small", 2)
    assert signed_by(target, 2) == {key.key_id}
    Repository(target.location, trusted_keys=[key.public]).fetch("small", 2)
    assert copy_version(stored, "small", 2, target) == 3
    assert signed_by(target, 3) == set()
    keys: tuple[SigningKey, ...] = read_signing_keys([key.private])
    assert copy_version(stored, "small", 2, target, keys=keys) == 4
    Repository(target.location, trusted_keys=[key.public]).fetch("small", 4)


def test_signatures_go_as_versions_go(
    stored: Repository, publish_copy: Publisher, key: KeyFiles
) -> None:
    for _ in range(3):
        publish_signed(publish_copy, stored, key)
    names = {n: signatures_name(stored.manifest_text("small", n)) for n in (1, 2, 3)}
    assert collect(stored, "small", keep=1).leftovers.names == ()
    # The versions are gone; their signatures are too young, as a publisher's may be.
    assert stored.versions("small") == [3]
    time.sleep(1.1)  # the store's clock has whole seconds
    done = collect(stored, "small", keep=1, safe_seconds=0)
    assert {names[1], names[2]} <= set(done.leftovers.names)
    assert names[3] not in done.leftovers.names
    assert collect(stored, "small", keep=1, safe_seconds=0).leftovers.names == ()
    Repository(stored.location, trusted_keys=[key.public]).fetch("small", 3)


def test_foreign_files_are_kept(publish_copy: Publisher, key: KeyFiles, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    publish_signed(publish_copy, repository, key)
    folder = tmp_path / "models" / "small" / "signatures"
    (folder / "notes.json").write_text("mine")
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / f"{'0' * 64}.json").write_text("{}")
    folder.symlink_to(tmp_path / "elsewhere")
    assert collect(repository, "small", keep=1, safe_seconds=-1).leftovers.names == ()
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    done = collect(repository, "small", keep=1, safe_seconds=-1)
    assert done.leftovers.names == (f"signatures/{'0' * 64}.json",)
    assert sorted(os.listdir(folder))[1:] == ["notes.json"]
