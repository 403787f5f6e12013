import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.model_spec import ModelSpec
from tests.serving.test_cli import Files, files
from tests.support.publisher import Publisher
from tests.support.s3_server import BUCKET, S3Server
from tests.support.servers import Command

__all__ = ["files"]


@pytest.fixture
def filled(stored: Repository, publish_copy: Publisher) -> Repository:
    """Four versions; `stable` was 1 and is 3."""
    for version in range(1, 5):
        publish_copy(stored, {"notes.bin": bytes([version]) * 1000})
    for version in (1, 3):
        stored.set_label("small", "stable", version)
    return stored


def test_a_repository_is_listed_with_labels_sizes_and_ages(
    filled: Repository, sharded_infer: Command
) -> None:
    fields = sharded_infer("repo", "list", filled.location, "--json").json()
    small = fields["models"]["small"]
    assert small["labels"] == {"stable": 3}
    assert [line["version"] for line in small["versions"]] == [1, 2, 3, 4]
    assert [line["labels"] for line in small["versions"]] == [[], [], ["stable"], []]
    assert [line["new_bytes"] for line in small["versions"][1:]] == [1000] * 3
    assert all(0 <= line["age_seconds"] < 3600 for line in small["versions"])
    told = sharded_infer("repo", "list", filled.location)
    assert "small" in told.out and "stable 3" in told.out


def test_a_model_and_a_version_are_shown(filled: Repository, sharded_infer: Command) -> None:
    fields = sharded_infer("repo", "show", filled.location, "small", "--json").json()
    assert (fields["labels"], fields["history"]) == ({"stable": 3}, {"stable": [1]})
    assert (
        "stable pointed at 1 before" in sharded_infer("repo", "show", filled.location, "small").out
    )
    for name, version in (("stable", 3), ("2", 2), ("latest", 4)):
        shown = sharded_infer("repo", "show", filled.location, "small", name, "--json").json()
        assert shown["version"] == version
    told = sharded_infer("repo", "show", filled.location, "small", "stable")
    assert "small version 3" in told.out and f"{filled.location}/small/3" in told.out


def test_a_label_is_moved_removed_and_rolled_back(
    filled: Repository, sharded_infer: Command
) -> None:
    def label(*words: object) -> tuple[object, object]:
        fields = sharded_infer("repo", "label", filled.location, "small", *words, "--json").json()
        return fields["before"], fields["after"]

    def roll_back(*words: object) -> tuple[object, object]:
        done = sharded_infer("repo", "rollback", filled.location, "small", *words, "--json")
        return done.json()["before"], done.json()["after"]

    assert label("stable", "latest", "--dry-run") == (3, 4)
    assert filled.labels("small") == {"stable": 3}
    assert label("canary", 4) == (None, 4)
    assert label("stable", "canary") == (3, 4)
    assert roll_back("--dry-run") == (4, 3)
    where = ("repo", "rollback", filled.location, "small")
    told = sharded_infer(*where).out
    assert "small: stable version 3, version 4 before" in told
    assert "(serve --follow labels:stable) move at their next look; others stay" in told
    assert roll_back() == (3, 1)
    assert roll_back("--label", "canary", "--to", 2) == (4, 2)
    assert label("canary", "--remove") == (2, None)
    assert filled.labels("small") == {"stable": 1}
    sharded_infer(*where).refused("label 'stable': no version before 1 to go back to")
    sharded_infer(*where, "--label", "beta").refused("has no label 'beta'; there are stable")
    sharded_infer(*where, "--to", 9).refused("has no version 9; it has 1, 2, 3, 4")


def test_without_a_label_a_rollback_says_how_servers_of_the_latest_go_back(
    filled: Repository, sharded_infer: Command
) -> None:
    filled.remove_label("small", "stable")
    again = f"repo copy {filled.location} small@3 {filled.location}"
    sharded_infer("repo", "rollback", filled.location, "small").refused(again)
    done = sharded_infer(*again.split())
    assert done.code == 0 and filled.versions("small") == [1, 2, 3, 4, 5]
    files = [filled.manifest("small", version).files for version in (3, 5)]
    assert files[0] == files[1]


def test_weights_are_set_shown_and_cleared(filled: Repository, sharded_infer: Command) -> None:
    filled.set_label("small", "canary", 4)
    where = ("repo", "label", filled.location, "small")
    assert (
        "would be canary=5 stable=95, none before"
        in sharded_infer(*where, "stable=95", "canary=5", "--dry-run").out
    )
    assert not filled.label_history("small").weights
    done = sharded_infer(*where, "stable=95", "canary=5", "--json").json()
    assert (done["before"], done["after"]) == ({}, {"canary": 5, "stable": 95})
    sharded_infer(*where, "stable=90", "canary=10")
    shown = sharded_infer("repo", "show", filled.location, "small")
    assert "weights canary=10 stable=90, before: canary=5 stable=95" in shown.out
    fields = sharded_infer("repo", "show", filled.location, "small", "--json").json()
    assert fields["weights"] == {"canary": 10, "stable": 90}
    assert fields["past_weights"] == [{"canary": 5, "stable": 95}]
    assert sharded_infer(*where, "--clear-weights").out == (
        "small: weights none, canary=10 stable=90 before\n"
    )
    assert not filled.label_history("small").weights


def test_labels_that_make_no_sense_are_refused(filled: Repository, sharded_infer: Command) -> None:
    where = ("repo", "label", filled.location, "small")
    for words, message in (
        (("stable", 9), "has no version 9; it has 1, 2, 3, 4"),
        (("7", 1), "'7' is no label"),
        (("stable",), "expected a label and a version"),
        (("stable", 1, "--remove"), "expected a label and a version"),
        (("beta", "--remove"), "no label 'beta'"),
        (("stable=95", "beta=5"), "no label 'beta'"),
        (("stable=x",), "expected LABEL=WEIGHT, such as canary=5"),
        (("stable=1", "stable=2"), "label 'stable' has two weights"),
        (("stable=1", "--clear-weights"), "expected weights such as"),
    ):
        sharded_infer(*where, *words).refused(message)
    sharded_infer("repo", "label", filled.location, "big", "stable", 1).refused("no model 'big'")
    assert filled.labels("small") == {"stable": 3}


def test_old_versions_are_collected(filled: Repository, sharded_infer: Command) -> None:
    where = ("repo", "gc", filled.location, "--keep", 1)
    foreseen = sharded_infer(*where, "--dry-run", "--json").json()["models"][0]
    assert (foreseen["removed"], foreseen["freed_bytes"]) == ([2], 1000)
    assert filled.versions("small") == [1, 2, 3, 4]
    assert "would remove versions 2" in sharded_infer(*where, "--dry-run").out
    told = sharded_infer(*where, "--safe-hours", 0)
    assert told.code == 0
    assert "removed versions 2, 1.00 kB" in told.out
    assert "- 1 stays: stable would be rolled back to it" in told.out
    assert "- 3 stays: label stable" in told.out and "- 4 stays: one of the latest 1" in told.out
    assert filled.versions("small") == [1, 3, 4]
    assert sharded_infer("repo", "gc", filled.location).code == 2


def test_a_repository_that_is_whole_is_verified(filled: Repository, sharded_infer: Command) -> None:
    fields = sharded_infer("repo", "verify", filled.location, "--json").json()
    assert fields["errors"] == []
    assert [entry["version"] for entry in fields["versions"]] == [1, 2, 3, 4]
    told = sharded_infer("repo", "verify", filled.location, "small", "stable")
    assert (told.code, told.out) == (0, "small version 3: as the manifest says\n")


def flip_in_folder(location: str, sha256: str, _: S3Server) -> None:
    path = Path(location) / "small" / "2" / "notes.bin"
    assert sha256 not in path.name
    path.write_bytes(b"x" + path.read_bytes()[1:])


def flip_in_bucket(location: str, sha256: str, s3: S3Server) -> None:
    key = f"{location.removeprefix(f's3://{BUCKET}/')}/small/files/{sha256}"
    s3.put(key, b"x" + s3.content(key)[1:])


def test_a_version_whose_manifest_has_no_checksum_is_said_to_have_none(
    version_copy: Path, sharded_infer: Command
) -> None:
    path = version_copy / "manifest.json"
    place = version_copy.parent.parent
    said = sharded_infer("inspect", "-r", place).out
    assert f"SHA-256 {json.loads(path.read_text())['sha256']}" in said.replace("\n", " ")
    assert "without a checksum" not in sharded_infer("repo", "verify", place).out
    document = json.loads(path.read_text())
    del document["sha256"]
    path.write_text(json.dumps(document))
    for words in (("inspect", "-r", place), ("repo", "verify", place), ("verify", "-r", place)):
        done = sharded_infer(*words)
        assert (done.code, "without a checksum of its own" in done.out) == (0, True)


@pytest.mark.parametrize("flip", [flip_in_folder, flip_in_bucket])
def test_every_damaged_version_is_named_even_if_the_cache_has_it_whole(
    flip: Callable[[str, str, S3Server], None],
    publish_copy: Publisher,
    sharded_infer: Command,
    s3: S3Server,
    s3_url: str,
    tmp_path: Path,
) -> None:
    repository = Repository(tmp_path / "models" if flip is flip_in_folder else s3_url)
    for version in range(1, 4):
        publish_copy(repository, {"notes.bin": bytes([version]) * 1000})
    repository.release(repository.fetch("small", 2))
    flip(repository.location, repository.manifest("small", 2).files["notes.bin"].sha256, s3)
    done = sharded_infer("repo", "verify", repository.location, "--json")
    assert done.code == 1
    errors = {entry["version"]: "error" in entry for entry in json.loads(done.out)["versions"]}
    assert errors == {1: False, 2: True, 3: False}
    assert "notes.bin" in done.err and "altered: its SHA-256 is" in done.err


def test_a_label_of_a_version_that_is_gone_is_an_error(
    publish_copy: Publisher, sharded_infer: Command, tmp_path: Path
) -> None:
    repository = Repository(tmp_path)
    for _ in range(2):
        publish_copy(repository)
    repository.set_label("small", "stable", 1)
    shutil.rmtree(repository.open("small", 1).path)
    done = sharded_infer("repo", "verify", tmp_path)
    assert done.code == 1
    assert "label 'stable' points at version 1, which does not exist" in done.err


def test_a_version_is_copied_from_kind_to_kind(
    filled: Repository, sharded_infer: Command, tmp_path: Path
) -> None:
    target = tmp_path / "copies"
    words = ("repo", "copy", filled.location, "small@stable", target, "--json")
    foreseen = sharded_infer(*words, "--dry-run").json()
    assert (foreseen["version"], foreseen["dry_run"]) == (1, True)
    assert not target.exists()
    assert sharded_infer(*words).json()["version"] == 1
    assert sharded_infer(*words, "--same-version").json()["version"] == 3
    again = sharded_infer(*words, "--same-version")
    again.refused("small/3", "is there already")
    verify_files(open_artifact(target / "small" / "3"))
    back = sharded_infer("repo", "copy", target, "small", filled.location)
    assert back.code == 0
    assert filled.versions("small") == [1, 2, 3, 4, 5]


def test_what_changed_between_versions_is_told_by_table(
    trained_spec: ModelSpec,
    trained_weights: dict[str, Tensor],
    trained_tower: nn.Module,
    location: str,
    sharded_infer: Command,
) -> None:
    publish(trained_spec, trained_weights, trained_tower, location)
    changed = {name: weight.clone() for name, weight in trained_weights.items()}
    for row in random.Random(0).sample(range(50), 7):
        changed["ads"][row] = torch.arange(8)
    publish(trained_spec, changed, trained_tower, location)
    fields = sharded_infer("repo", "diff", location, "small", 1, "latest", "--json").json()
    changes = {t["name"]: t["rows_changed"] for t in fields["tables"]}
    assert changes == {"ads": 7, "country": 0, "user": 0, "item": 0}
    assert not fields["tower_changed"]
    told = sharded_infer("repo", "diff", location, "small", 1, 2)
    assert "7 (14.0%)" in told.out and "tower unchanged" in told.out


def test_the_other_commands_take_urls_too(
    files: Files, s3_url: str, sharded_infer: Command
) -> None:
    words = ("publish", "--spec", files.spec, "--weights", files.weights, "-r", s3_url)
    fields = sharded_infer(*words, "--json").json()
    assert fields["path"] == f"{s3_url}/clicks/1"
    assert f"{s3_url}/clicks/2" in sharded_infer(*words).out
    assert sharded_infer("inspect", "-r", s3_url, "--json").json()["version"] == 2
    assert sharded_infer("verify", "-r", s3_url, "--json").json()["version"] == 2
    sample = '{"dense": [0.5, -1, 0, 2], "C1": 7, "C1_history": [1, 2], "C2": [3, 4]}'
    scored = sharded_infer("predict", "-", "-r", s3_url, "--json", stdin=sample).json()
    assert len(scored["scores"]["score"]) == 1


def test_a_version_is_published_with_where_it_came_from(
    files: Files, sharded_infer: Command
) -> None:
    place = files.repository
    for number in (1, 2):
        words = ("--note", f"try [{number}]", "--run-id", f"run-{number}")
        done = sharded_infer(*files.publish(*words, "--source-revision", "4f2a9c1"))
        assert done.code == 0, done.err
    first, second = (f"note try [{n}]; run run-{n}; source 4f2a9c1" for n in (1, 2))
    said = {"note": "try [2]", "run_id": "run-2", "source_revision": "4f2a9c1"}
    assert f"clicks version 2: {second}" in sharded_infer("repo", "list", place).out
    listed = sharded_infer("repo", "list", place, "--json").json()["models"]["clicks"]["versions"]
    assert listed[1]["provenance"] == said
    told = sharded_infer("repo", "show", place, "clicks").out
    assert f"version 1: {first}" in told and f"version 2: {second}" in told
    assert second in sharded_infer("repo", "show", place, "clicks", 2).out
    shown = sharded_infer("repo", "show", place, "clicks", 2, "--json").json()
    assert shown["provenance"] == said
    diff = ("repo", "diff", place, "clicks", 1, 2)
    assert f"version 1: {first}\nversion 2: {second}\n" in sharded_infer(*diff).out
    assert sharded_infer(*diff, "--json").json()["provenances"][1] == said
    sharded_infer(*files.publish("--note", "a\x1b[31mb")).refused("note: ", "not a printable")
