from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.errors import ArtifactError, InputError
from sharded_infer.repositories.garbage_collection import choose_versions, collect
from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.repository import Repository
from tests.support.publisher import Publisher


def kept(labels: Labels, keep: int) -> dict[int, str]:
    fates = choose_versions(range(1, 8), labels, keep)
    return {fate.version: fate.kept_because for fate in fates if fate.kept_because}


def test_latest_and_labelled_versions_stay_and_what_they_would_be_rolled_back_to() -> None:
    assert kept(Labels(), 2) == {6: "one of the latest 2", 7: "one of the latest 2"}
    assert kept(Labels().moved("stable", 2).moved("stable", 5), 1) == {
        2: "stable would be rolled back to it",
        5: "label stable",
        7: "one of the latest 1",
    }


@pytest.mark.parametrize("keep", [0, -1])
def test_at_least_the_latest_stays(keep: int) -> None:
    with pytest.raises(InputError, match=f"keep: {keep}, expected at least 1"):
        choose_versions([1], Labels(), keep)


@pytest.fixture
def filled(stored: Repository, publish_copy: Publisher) -> Repository:
    for version in range(1, 6):
        publish_copy(stored, {"notes.bin": bytes([version]) * 1000})
    return stored


def test_old_versions_go_and_the_others_stay_whole(filled: Repository) -> None:
    filled.set_label("small", "stable", 2)
    foreseen = collect(filled, "small", keep=1, dry_run=True)
    assert filled.versions("small") == [1, 2, 3, 4, 5]
    done = collect(filled, "small", keep=1, safe_seconds=-1)
    assert foreseen.removed == done.removed == [3, 4]
    assert foreseen.freed_bytes == done.freed_bytes == 2000
    assert filled.versions("small") == [1, 2, 5]
    assert filled.label_history("small").removing == ()
    for version in (1, 2, 5):
        path = filled.fetch("small", version)
        verify_files(open_artifact(path))
        filled.release(path)
    assert collect(filled, "small", keep=1, safe_seconds=-1).removed == []
    assert filled.leftovers("small", -1).names == ()


def test_a_damaged_manifest_stops_a_collection_before_anything_is_removed(
    publish_copy: Publisher, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "models")
    for _ in range(3):
        publish_copy(repository)
    (repository.path / "small" / "3" / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"small/3/manifest.json"):
        collect(repository, "small", keep=1)
    assert repository.versions("small") == [1, 2, 3]


def test_a_version_that_a_server_uses_stays(publish_copy: Publisher, tmp_path: Path) -> None:
    repository, server = (Repository(tmp_path / "models") for _ in range(2))
    for _ in range(3):
        publish_copy(repository)
    path = server.fetch("small", 1)
    for dry_run in (True, False):
        done = collect(repository, "small", keep=1, dry_run=dry_run)
        assert done.removed == [2]
        assert done.fates[0].kept_because == "in use"
    server.release(path)
    assert collect(repository, "small", keep=1).removed == [1]
