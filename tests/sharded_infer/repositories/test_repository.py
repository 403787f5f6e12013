import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.artifacts.manifest import MANIFEST_NAME, Manifest
from sharded_infer.errors import ArtifactError, MisplacedError, NotFoundError
from sharded_infer.repositories.repository import Repository
from tests.support.publisher import Publisher

CHECKOUT = Path(__file__).parents[3]
PUBLISH_MANY = """
import sys
from pathlib import Path
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.repositories.repository import Repository
repository, manifest = Repository(sys.argv[1]), open_artifact(Path(sys.argv[2])).manifest
for _ in range(int(sys.argv[3])):
    with repository.staging("small") as staged:
        (staged / "file").write_text("content")
        print(repository.commit(staged, manifest).name, flush=True)
"""
STAGE_AND_HANG = """
import sys, time
from sharded_infer.repositories.repository import Repository
with Repository(sys.argv[1]).staging("small") as staged:
    (staged / "tables").mkdir()
    (staged / "tables" / "half").write_text("half")
    print(staged.name, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def manifest(published_version: Path) -> Manifest:
    return open_artifact(published_version).manifest


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "models")


def commit(repository: Repository, manifest: Manifest) -> int:
    with repository.staging(manifest.model) as staged:
        (staged / "tables").mkdir()
        (staged / "tables" / "rows").write_text("rows")
        return int(repository.commit(staged, manifest).name)


def started(script: str, *words: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )


def test_a_committed_version_is_all_that_stays(repository: Repository, manifest: Manifest) -> None:
    commit(repository, manifest)
    wanted = ["1", "1/manifest.json", "1/tables", "1/tables/rows", "highest_version"]
    home = repository.path / "small"
    assert sorted(str(entry.relative_to(home)) for entry in home.rglob("*")) == wanted


@pytest.mark.parametrize("name", ["01", "0", "-1", "1.5", "one", "²", "1a", ".staging-1"])
def test_versions_are_plain_numbers(repository: Repository, manifest: Manifest, name: str) -> None:
    commit(repository, manifest)
    (repository.path / "small" / "1").rename(repository.path / "small" / name)
    assert repository.models() == []
    with pytest.raises(NotFoundError, match="no model 'small'; it holds none"):
        repository.versions("small")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../models", "small/../small", "/", "a" * 300, "\0"]
)
def test_no_name_leads_outside(repository: Repository, manifest: Manifest, name: str) -> None:
    commit(repository, manifest)
    # A version lies where each of these names would lead.
    for place in (repository.path, repository.path.parent):
        (place / "1").mkdir(exist_ok=True)
        (place / "1" / MANIFEST_NAME).write_text("{}")
    with pytest.raises(NotFoundError, match="no model "):
        repository.open(name)


def test_a_missing_repository_is_refused_by_path(repository: Repository) -> None:
    with pytest.raises(NotFoundError, match=f"{repository.path}: no such repository"):
        repository.models()
    with pytest.raises(NotFoundError, match=f"{repository.path}: no such repository"):
        repository.open("small")


def test_what_a_killed_publisher_left_is_swept_and_what_a_living_one_has_is_not(
    repository: Repository, manifest: Manifest
) -> None:
    with started(STAGE_AND_HANG, repository.path) as publisher:
        try:
            assert publisher.stdout is not None
            left = repository.path / "small" / publisher.stdout.readline().strip()
            commit(repository, manifest)
            assert (left / "tables" / "half").read_text() == "half"
        finally:
            publisher.send_signal(signal.SIGKILL)
            publisher.wait()
    assert left.is_dir()
    commit(repository, manifest)
    assert sorted(os.listdir(repository.path / "small")) == ["1", "2", "highest_version"]


def test_processes_never_share_a_number(
    repository: Repository, manifest: Manifest, published_version: Path
) -> None:
    with started(PUBLISH_MANY, repository.path, published_version, 20) as other:
        assert other.stdout is not None
        versions = [int(other.stdout.readline())]
        # From here on both publish.
        versions += [commit(repository, manifest) for _ in range(20)]
        versions += map(int, other.stdout.read().split())
    assert other.returncode == 0
    assert sorted(versions) == list(range(1, 41)) == repository.versions("small")
    left = {*map(str, versions), "highest_version"}
    assert set(os.listdir(repository.path / "small")) == left
    for version in versions:
        assert repository.open("small", version).manifest.version == version


def test_stagings_that_begin_and_end_at_once_sweep_no_other(repository: Repository) -> None:
    def stage(number: int) -> None:
        with repository.staging("small") as staged:
            (staged / "number").write_text(str(number))
            assert (staged / "number").read_text() == str(number)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(stage, range(600)))
    assert os.listdir(repository.path / "small") == []


def test_only_versions_count_for_the_next_number(
    repository: Repository, publish_copy: Publisher
) -> None:
    publish_copy(repository)
    home = repository.path / "small"
    (home / "7").mkdir()
    (home / "9").symlink_to(home / "1")
    copied = 9007199254740991
    for name in ("9223372036854775808", "9007199254740992", str(copied), "1" * 5000, "08", "x"):
        with suppress(OSError):
            (home / name).mkdir()
            (home / name / "manifest.json").write_bytes((home / "1/manifest.json").read_bytes())
    assert publish_copy(repository) == 2
    assert repository.versions("small") == [1, 2, 9, copied]
    assert repository.latest("small") == 2
    with pytest.raises(MisplacedError, match=f"says version 1, its folder {copied}"):
        repository.open("small")
    (home / "3").mkdir()
    (home / "3" / "notes.txt").write_text("not empty")
    assert publish_copy(repository) == 4
    (home / "highest_version").write_text("next week")
    with pytest.raises(ArtifactError, match="highest_version: expected a version number, got b'ne"):
        publish_copy(repository)


def test_a_damaged_file_is_not_shared(repository: Repository, publish_copy: Publisher) -> None:
    publish_copy(repository)
    damaged = repository.open("small", 1).path / "tower.pt2"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    publish_copy(repository)
    second = repository.open("small", 2)
    assert not damaged.samefile(second.path / "tower.pt2")
    verify_files(second)
