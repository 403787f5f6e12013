"""Signatures of versions that were altered, exchanged or made up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sharded_infer.errors import ShardedInferError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys, sign_with
from sharded_infer.repositories.signatures.manifest_signatures import Sealing
from sharded_infer.repositories.signatures.signature_file import (
    MAX_SIGNATURES_BYTES,
    dump_signatures,
    parse_signatures,
    signatures_name,
)
from tests.support.publisher import Publisher
from tests.support.signing_keys import KeyFiles, make_key

ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group of ed25519


class Store:
    """A repository in a folder, open to an attacker, and the key that signed versions 1 and 2."""

    def __init__(self, folder: Path, key: KeyFiles) -> None:
        self.repository, self.key = Repository(folder), key
        self.altered = f"altered: the signature by key {key.key_id}"
        self._model = folder / "small"

    def write(self, name: str, content: bytes) -> None:
        path = self._model / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    def name(self, version: int) -> str:
        return signatures_name(self.repository.manifest_text("small", version))

    def signatures(self, version: int) -> dict[str, bytes]:
        text = self.repository.manifest_text("small", version)
        return dict(self.repository.signatures.of("small", text))

    def refusal(self, version: int = 1) -> str:
        """Why a server that trusts the key does not take the version."""
        trusting = Repository(self.repository.location, trusted_keys=[self.key.public])
        with pytest.raises(ShardedInferError) as refused:
            trusting.manifest("small", version)
        with pytest.raises(ShardedInferError) as unfetched:
            trusting.fetch("small", version)
        assert str(unfetched.value) == str(refused.value)
        return str(refused.value)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyFiles:
    return make_key(tmp_path_factory.mktemp("keys"), "key")


@pytest.fixture
def store(tmp_path: Path, publish_copy: Publisher, key: KeyFiles) -> Store:
    store = Store(tmp_path / "models", key)
    for _ in range(2):
        sealing = Sealing.by(read_signing_keys([key.private]))
        publish_copy(store.repository, sealing=sealing)
    return store


def test_a_moved_manifest_is_refused(store: Store, publish_copy: Publisher) -> None:
    first = store.repository.manifest_text("small", 1)
    store.write("3/manifest.json", first)
    assert "says version 1, its folder 3" in store.refusal(3)
    sealing = Sealing.by(read_signing_keys([store.key.private]))
    for _ in range(3):
        publish_copy(store.repository, model="other", sealing=sealing)
    other = store.repository.manifest_text("other", 3)
    store.write("3/manifest.json", other)
    store.write(signatures_name(other), dump_signatures(sealing.sign(other)))
    assert "the manifest is of model 'other', its folder of 'small'" in store.refusal(3)


def test_a_manifest_altered_with_its_checksum_is_refused(store: Store) -> None:
    text = store.repository.manifest_text("small", 1)
    altered = text.replace(b"small", b"smalL", 1)
    before = store.signatures(1)
    store.write("1/manifest.json", altered)
    assert f"expected a signature by key {store.key.key_id}" in store.refusal()
    store.write(signatures_name(altered), dump_signatures(before))
    assert "is of something else" in store.refusal()


def _malleable(signature: bytes) -> bytes:
    """The other S that an unchecked equation accepts."""
    s = int.from_bytes(signature[32:], "little") + ORDER
    return signature[:32] + s.to_bytes(32, "little")


def _foreign(store: Store) -> bytes:
    foreign = make_key(Path(store.repository.location).parent, "foreign")
    text = store.repository.manifest_text("small", 1)
    (made,) = sign_with(read_signing_keys([foreign.private]), text).values()
    return made


FORGED: dict[str, Callable[[bytes, Store], bytes]] = {
    "zeros": lambda *_: bytes(64),
    "the identity and zero": lambda *_: b"\1" + bytes(63),
    "S beyond the order": lambda s, _: _malleable(s),
    "one bit": lambda s, _: bytes([s[0] ^ 1]) + s[1:],
    "the last bit": lambda s, _: s[:-1] + bytes([s[-1] ^ 128]),
    "halves exchanged": lambda s, _: s[32:] + s[:32],
    "of another version": lambda _, store: store.signatures(2)[store.key.key_id],
    "of a foreign key": lambda _, store: _foreign(store),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_and_exchanged_signatures_are_refused(store: Store, forgery: str) -> None:
    forged = FORGED[forgery](store.signatures(1)[store.key.key_id], store)
    store.write(store.name(1), dump_signatures({store.key.key_id: forged}))
    assert store.altered in store.refusal()


def _listed(content: bytes) -> list[dict[str, str]]:
    listed = json.loads(content)["signatures"]
    assert isinstance(listed, list)
    return listed


def _file(signatures: object, **more: object) -> bytes:
    return json.dumps({"format_version": 1, "signatures": signatures, **more}).encode()


SPOILED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "the document: Invalid JSON"),
    "nested": (lambda _: b"[" * 60_000, "the document: Invalid JSON"),
    "none listed": (lambda _: _file([]), "signatures: Tuple should have at least 1 item"),
    "another format": (
        lambda c: json.dumps({"format_version": 2, "signatures": _listed(c)}).encode(),
        "format_version: Input should be 1",
    ),
    "a key twice": (lambda c: _file(_listed(c) * 2), "expected one signature by each key, got two"),
    "an unknown field": (lambda c: _file(_listed(c), trusted=True), "trusted: Unexpected"),
    "a short signature": (
        lambda c: _file([{**_listed(c)[0], "signature": "00" * 63}]),
        "signatures.0.signature: String should match",
    ),
    "a path as key id": (
        lambda c: _file([{**_listed(c)[0], "key_id": "../../../etc/pass"}]),
        "signatures.0.key_id: String should match",
    ),
    "too large": (
        lambda c: c + b" " * MAX_SIGNATURES_BYTES,
        f"expected at most {MAX_SIGNATURES_BYTES}",
    ),
}


@pytest.mark.parametrize("damage", SPOILED)
def test_damaged_signatures_are_refused_and_named(store: Store, damage: str) -> None:
    spoil, words = SPOILED[damage]
    name = store.name(1)
    store.write(name, spoil(dump_signatures(store.signatures(1))))
    said = store.refusal()
    assert name in said and words in said
    # Who names no keys does not look at it.
    assert store.repository.manifest("small", 1).version == 1


def test_of_many_signatures_only_trusted_ones_are_computed(store: Store) -> None:
    most = {f"{number:016x}": bytes(64) for number in range(300)}
    store.write(store.name(1), dump_signatures({**most, **store.signatures(1)}))
    Repository(store.repository.location, trusted_keys=[store.key.public]).fetch("small", 1)
    assert len(parse_signatures(dump_signatures(most), "here")) == 300


def test_links_and_folders_are_no_signatures(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "models" / "small" / store.name(1)
    path.rename(tmp_path / "real")
    path.symlink_to(tmp_path / "real")
    assert "expected a regular file, got a symbolic link" in store.refusal()
    path.unlink()
    path.mkdir()
    assert "expected a regular file, got a folder" in store.refusal()
