import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError, InputError, NotFoundError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.rollback import roll_back
from sharded_infer.repositories.version_copy import copy_version
from tests.support.publisher import Publisher


def test_a_published_version_is_listed_opened_fetched_and_scores(
    stored: Repository, publish_copy: Publisher
) -> None:
    assert [publish_copy(stored) for _ in range(2)] == [1, 2]
    assert stored.models() == ["small"]
    assert stored.versions("small") == [1, 2]
    assert stored.open("small").manifest.version == 2
    assert stored.open("small", 1).plan().topology.name == "cpu:1"
    folder = stored.fetch("small", 1)
    fetched = open_artifact(folder)
    assert fetched.manifest == stored.open("small", 1).manifest
    verify_files(fetched)
    check_golden(open_model(folder))


def test_numbers_are_never_used_twice(stored: Repository, publish_copy: Publisher) -> None:
    for _ in range(3):
        publish_copy(stored)
    assert stored.remove("small", 2)
    assert stored.versions("small") == [1, 3]
    assert publish_copy(stored) == 4
    assert stored.remove("small", 4) and stored.remove("small", 3)
    assert publish_copy(stored) == 5


def test_a_given_number_is_taken_once(stored: Repository, publish_copy: Publisher) -> None:
    publish_copy(stored)
    artifact = publish_copy.source
    for expected in (nullcontext(), pytest.raises(ArtifactError, match="is there already")):
        with stored.staging("small") as staged:
            shutil.copytree(artifact.path, staged, dirs_exist_ok=True)
            (staged / "manifest.json").unlink()
            with expected:
                assert stored.commit(staged, artifact.manifest, version=7).name == "7"
    assert stored.versions("small") == [1, 7]


def test_an_unknown_model_or_version_is_refused_with_what_there_is(
    stored: Repository, publish_copy: Publisher
) -> None:
    publish_copy(stored)
    for name in ("big", "", "..", "small/../small", "a\0b"):
        with pytest.raises(NotFoundError, match="no model .*; it holds small"):
            stored.open(name)
    for call in (stored.open, stored.fetch):
        with pytest.raises(NotFoundError, match="model 'small' has no version 2; it has 1"):
            call("small", 2)


def test_publishers_at_once_never_make_the_same_version(
    stored: Repository, publish_copy: Publisher
) -> None:
    with ThreadPoolExecutor(4) as threads:
        versions = list(threads.map(lambda _: publish_copy(stored), range(12)))
    assert sorted(versions) == list(range(1, 13)) == stored.versions("small")
    for version in versions:
        verify_files(open_artifact(stored.fetch("small", version)))


def test_labels_move_back_and_go(stored: Repository, publish_copy: Publisher) -> None:
    for _ in range(3):
        publish_copy(stored)
    assert stored.labels("small") == {}
    stored.set_label("small", "stable", 1)
    stored.set_label("small", "stable", 3)
    stored.set_label("small", "canary", 2)
    assert stored.labels("small") == {"canary": 2, "stable": 3}
    assert roll_back(stored, "small", "stable").versions["stable"] == 1
    with pytest.raises(NotFoundError, match="no version before 1"):
        roll_back(stored, "small", "stable")
    assert roll_back(stored, "small", "canary").versions["canary"] == 1
    assert roll_back(stored, "small", "stable", 2).versions["stable"] == 2
    stored.remove_label("small", "stable")
    assert stored.labels("small") == {"canary": 1}
    with pytest.raises(NotFoundError, match="no label 'stable'; there are canary"):
        stored.remove_label("small", "stable")


def test_labels_set_at_once_are_all_there(stored: Repository, publish_copy: Publisher) -> None:
    publish_copy(stored)
    names = [f"label-{number}" for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: stored.set_label("small", name, 1), names))
    assert stored.labels("small") == dict.fromkeys(sorted(names), 1)


def test_nothing_is_stored_twice(stored: Repository, publish_copy: Publisher) -> None:
    publish_copy(stored, {"notes.bin": b"one" * 1000})
    publish_copy(stored, {"notes.bin": b"two" * 1000})
    first, second = (stored.fetch("small", version) for version in (1, 2))
    for name in publish_copy.source.manifest.files:
        assert (first / name).samefile(second / name)
    assert (first / "notes.bin").read_bytes() == b"one" * 1000
    assert (second / "notes.bin").read_bytes() == b"two" * 1000


def test_what_was_staged_goes_after_an_error(stored: Repository, publish_copy: Publisher) -> None:
    left = []

    def fail() -> None:
        with stored.staging("small") as staged:
            left.append(staged)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not left[0].exists()
    assert publish_copy(stored) == 1


def test_a_label_points_at_versions_that_exist(stored: Repository, publish_copy: Publisher) -> None:
    publish_copy(stored)
    for model, version in (("small", 2), ("big", 1)):
        with pytest.raises(NotFoundError, match=f"no version 2|no model '{model}'"):
            stored.set_label(model, "stable", version)
    with pytest.raises(InputError, match="'1st' is no label"):
        stored.set_label("small", "1st", 1)
    assert stored.labels("small") == {}


@pytest.mark.parametrize("to", ["local", "s3"])
def test_a_copy_holds_the_same_and_has_the_next_number(
    to: str, stored: Repository, publish_copy: Publisher, tmp_path: Path, s3_url: str
) -> None:
    target = Repository(tmp_path / "target" if to == "local" else f"{s3_url}/target")
    for _ in range(3):
        publish_copy(stored)
    assert copy_version(stored, "small", 2, target) == 1
    assert copy_version(stored, "small", 3, target, same_version=True) == 3
    assert copy_version(stored, "small", None, target) == 4
    manifest = stored.open("small", 2).manifest
    for version in (1, 3, 4):
        copy = open_artifact(target.fetch("small", version))
        assert copy.manifest == replace(manifest, version=version)
        verify_files(copy)
    with pytest.raises(ArtifactError, match="small/3: .*is there already"):
        copy_version(stored, "small", 3, target, same_version=True)


def test_copies_have_own_files(stored: Repository, publish_copy: Publisher, tmp_path: Path) -> None:
    target = Repository(tmp_path / "target")
    publish_copy(stored)
    copy_version(stored, "small", 1, target)
    for name in stored.open("small").manifest.files:
        assert (target.open("small").path / name).stat().st_nlink == 1


def test_a_damaged_version_is_not_copied(publish_copy: Publisher, tmp_path: Path) -> None:
    source, target = Repository(tmp_path / "source"), Repository(tmp_path / "target")
    publish_copy(source)
    with (source.open("small").path / "tower.pt2").open("r+b") as file:
        file.seek(100)
        file.write(b"x")
    with pytest.raises(ArtifactError, match=r"tower.pt2: altered"):
        copy_version(source, "small", 1, target)
    with pytest.raises(NotFoundError, match="no model 'small'"):
        target.versions("small")
