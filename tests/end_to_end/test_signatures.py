"""Servers and shard hosts that load only signed versions, and keys that rotate under traffic."""

from contextlib import ExitStack
from pathlib import Path

from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys, sign_with
from tests.support.fronts import check, running_front, running_hosts
from tests.support.server_pages import metric
from tests.support.servers import MODEL, Command, running_server
from tests.support.shard_host_processes import publish_for_hosts
from tests.support.signing_keys import KeyFiles, make_key
from tests.support.traffic import POLL, Publisher, ask, client_of, states, traffic
from tests.support.waiting import until


def sign(location: Path | str, version: int, *keys: KeyFiles) -> None:
    repository = Repository(location)
    text = repository.manifest_text(MODEL, version)
    read = read_signing_keys(key.private for key in keys)
    repository.signatures.add(MODEL, text, sign_with(read, text))


def trust(file: Path, *keys: KeyFiles) -> None:
    file.with_suffix(".new").write_text("".join(key.public.read_text() for key in keys))
    file.with_suffix(".new").replace(file)


def test_keys_rotate_under_traffic_and_untrusted_versions_are_refused_by_name(
    publisher: Publisher, tmp_path: Path
) -> None:
    old, new, foreign = (make_key(tmp_path, name) for name in ("old", "new", "foreign"))
    keys, models = tmp_path / "keys.pem", publisher.repository
    trust(keys, old)
    sign(models, 1, old)
    options = (*POLL, "--trusted-key", keys, "--workers", 2)
    with (
        running_server(models, tmp_path / "log", *options) as server,
        client_of(server) as client,
        traffic(server, clients=1) as seen,
    ):

        def refused(version: int, words: str) -> bool:
            state, reason = states(client).get(version, ("", ""))
            return state == "UNAVAILABLE" and "failed at fetch: " in reason and words in reason

        expected = f"{MODEL}/2/manifest.json: expected a signature by key {old.key_id} ({keys})"
        assert publisher.good() == 2
        until(lambda: refused(2, f"{expected}, got none"), "unsigned")
        sign(models, 2, foreign)
        until(lambda: refused(2, f"{expected}, got one by {foreign.key_id}"), "foreign")
        assert ask(client).version == 1
        failures = metric(server, "version_load_failures_total")
        assert {phase: count for phase, count in failures.items() if count} == {"fetch": 2}
        # The server trusts both: what the new key signs is taken, and nothing is restarted.
        sign(models, 2, new)
        until(lambda: refused(2, f"one by {new.key_id}"), "not trusted yet")
        trust(keys, old, new)
        until(lambda: ask(client).version == 2, "a version that the new key has signed")
        # Only the new one: what the old key alone signs is refused, what is loaded stays.
        trust(keys, new)
        assert publisher.good() == 3
        sign(models, 3, old)
        until(lambda: refused(3, f"key {new.key_id} ({keys}), got one by {old.key_id}"), "old")
        assert (ask(client).version, ask(client, "1").version) == (2, 1)
        sign(models, 3, new)
        until(lambda: ask(client).version == 3, "a version that both have signed")
        until(lambda: 3 in seen.versions(), "the traffic meets it")
    assert seen.errors() == []
    assert seen.wrong(publisher.expected) == []
    assert "internal error" not in (tmp_path / "log").read_text()


def test_a_server_without_a_trusted_version_does_not_start(
    publisher: Publisher, tmp_path: Path, sharded_infer: Command
) -> None:
    key = make_key(tmp_path, "key")
    words = ("serve", "-r", publisher.repository, "--port", 0, "--http-port", 0, "--trusted-key")
    said = f"expected a signature by key {key.key_id} ({key.public}), got none"
    sharded_infer(*words, key.public).refused(said)
    sharded_infer(*words, key.private).refused("expected ed25519 public keys", "a private key")
    sharded_infer(*words, tmp_path / "absent").refused("absent: cannot be read")
    # As it starts, the newest that is trusted serves.
    assert publisher.good() == 2
    sign(publisher.repository, 1, key)
    with (
        running_server(
            publisher.repository, tmp_path / "log", "--trusted-key", key.public
        ) as server,
        client_of(server) as client,
    ):
        assert ask(client).version == 1


def test_shard_hosts_and_fronts_load_only_what_is_signed(tmp_path: Path) -> None:
    key = make_key(tmp_path, "key")
    ranker = publish_for_hosts(tmp_path, 2, 4000)
    sign(ranker.repository, 1, key)
    options = (*POLL, "--trusted-key", key.public)
    with ExitStack() as stack:
        hosts = stack.enter_context(running_hosts(ranker.repository, tmp_path, (1,), *options))
        front = stack.enter_context(running_front(ranker.repository, tmp_path, hosts, *options))
        client = stack.enter_context(client_of(front))
        check(front, ranker, 3)
        with_other_scores = publish_for_hosts(tmp_path, 2, 4000, seed=9)
        said = f"{MODEL}/2/manifest.json: expected a signature by key {key.key_id}"
        until(
            lambda: (
                f"its share cannot be loaded: {ranker.repository}/{said}"
                in hosts[1].log.read_text()
            ),
            "the host refuses it",
        )
        until(lambda: said in states(client).get(2, ("", ""))[1], "the front refuses it")
        assert ask(client).version == 1
        sign(ranker.repository, 2, key)
        until(lambda: ask(client).version == 2, "both have the signed version")
        check(front, with_other_scores, 3)


def test_a_version_is_published_signed_rotated_and_verified_by_commands(
    tmp_path: Path, sharded_infer: Command, publisher: Publisher
) -> None:
    old, new = make_key(tmp_path, "old"), make_key(tmp_path, "new")
    models = publisher.repository
    words = ("repo", "sign", models, MODEL, "--sign-key", new.private, "--trusted-key", old.public)
    sharded_infer(*words).refused(f"expected a signature by key {old.key_id}")
    fields = sharded_infer(
        "repo", "sign", models, f"{MODEL}@1", "--sign-key", old.private, "--json"
    ).json()
    assert fields["added"] == fields["signed_by"] == [old.key_id]
    assert sharded_infer(*words, "--dry-run").out.startswith("would sign ")
    assert sharded_infer(*words).out == f"signed {models}/{MODEL}/1 by key {new.key_id}\n"
    both = sorted([old.key_id, new.key_id])
    shown = sharded_infer("inspect", "-r", models)
    assert f"signed by key {', '.join(both)} (not checked: no --trusted-key)" in shown.out
    shown = sharded_infer("inspect", "-r", models, "--trusted-key", new.public)
    assert f"signed by key {', '.join(both)} (one is trusted)" in shown.out
    assert sharded_infer("inspect", "-r", models, "--json").json()["signed_by"] == both
    assert sharded_infer("repo", "show", models, MODEL, "1", "--json").json()["signed_by"] == both
    verified = sharded_infer("verify", "-r", models, "--trusted-key", new.public)
    assert "signed by a trusted key" in verified.out
    assert publisher.good() == 2
    assert "not signed" in sharded_infer("inspect", "-r", models).out
    sharded_infer("verify", "-r", models, "--trusted-key", new.public).refused("got none")
    checked = sharded_infer("repo", "verify", models, "--trusted-key", old.public)
    assert checked.code == 1 and f"expected a signature by key {old.key_id}" in checked.err
    assert checked.out.splitlines() == [
        f"{MODEL} version 1: as the manifest says",
        f"{MODEL} version 2: not signed by a trusted key",
    ]
    assert sharded_infer("repo", "verify", models).code == 0
