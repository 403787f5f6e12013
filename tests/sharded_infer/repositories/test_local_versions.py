import os
from contextlib import suppress
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import verify_files
from sharded_infer.errors import ArtifactError
from sharded_infer.repositories.repository import Repository
from tests.support.publisher import Publisher


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "models")


def test_a_file_that_was_damaged_is_not_shared(
    repository: Repository, publish_copy: Publisher
) -> None:
    publish_copy(repository)
    damaged = repository.open("small", 1).path / "tower.pt2"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    publish_copy(repository)
    second = repository.open("small", 2)
    assert not damaged.samefile(second.path / "tower.pt2")
    verify_files(second)


def test_a_version_that_is_used_is_not_removed(
    repository: Repository, publish_copy: Publisher
) -> None:
    publish_copy(repository)
    path = Repository(repository.path).fetch("small", 1)
    server = Repository(repository.path)
    assert server.fetch("small", 1) == path == repository.path / "small" / "1"
    assert not repository.remove("small", 1)
    server.release(path)
    assert repository.remove("small", 1)
    assert os.listdir(repository.path / "small") == ["highest_version"]


def test_only_versions_count_for_the_next_number(
    repository: Repository, publish_copy: Publisher
) -> None:
    publish_copy(repository)
    home = repository.path / "small"
    (home / "7").mkdir()
    (home / "9").symlink_to(home / "1")
    for name in ("9223372036854775808", "9007199254740992", "1" * 5000, "08", "x"):
        with suppress(OSError):
            (home / name).mkdir()
            (home / name / "manifest.json").write_bytes((home / "1/manifest.json").read_bytes())
    assert publish_copy(repository) == 2
    assert repository.versions("small") == [1, 2, 9]
    (home / "3").mkdir()
    (home / "3" / "notes.txt").write_text("not empty")
    assert publish_copy(repository) == 4
    (home / "highest_version").write_text("next week")
    with pytest.raises(ArtifactError, match="highest_version: expected a version number, got b'ne"):
        publish_copy(repository)


def test_a_version_that_somebody_else_removed_is_gone(
    repository: Repository, publish_copy: Publisher
) -> None:
    publish_copy(repository)
    assert repository.remove("small", 1)
    assert repository.remove("small", 1)
    assert repository.models() == []
