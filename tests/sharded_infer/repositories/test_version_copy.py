from dataclasses import replace
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.errors import ArtifactError, NotFoundError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.version_copy import copy_version
from tests.support.publisher import Publisher


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


def test_a_copy_has_files_of_its_own(
    stored: Repository, publish_copy: Publisher, tmp_path: Path
) -> None:
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
