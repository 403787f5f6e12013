"""Locks that others hold without end on files of a repository: said who holds what, and gone on."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sharded_infer.errors import StorageError
from sharded_infer.files import file_lock
from sharded_infer.files.file_lock import locked
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.file_cache import FileCache
from sharded_infer.repositories.storage.version_cache import VersionCache
from tests.support.manifest_file import edit_manifest
from tests.support.publisher import Publisher
from tests.support.servers import running_server
from tests.support.traffic import POLL, client_of
from tests.support.traffic import Publisher as RankerPublisher
from tests.support.waiting import until

SHORT_WAITS = """
import sharded_infer.files.file_lock as file_lock
file_lock.WAIT_SECONDS = file_lock.STALLED_SECONDS = 0.5
import serving.cli
serving.cli.main()
"""


@contextmanager
def lock_of_a_reader(path: Path) -> Iterator[None]:
    """Whoever may read a file or folder may lock it alone."""
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(file_lock, "STALLED_SECONDS", 0.1)


def refused_by_holder(path: Path, act: Callable[[], object]) -> None:
    with pytest.raises(StorageError) as caught:
        act()
    words = f"{path}: process {os.getpid()} ("
    assert words in str(caught.value) and "has held a lock on it for more than" in str(caught.value)


@pytest.mark.usefixtures("short_waits")
def test_a_manifest_or_a_folder_that_is_locked_is_not_waited_for_without_end(
    tmp_path: Path, publish_copy: Publisher
) -> None:
    repository = Repository(tmp_path)
    publish_copy(repository)
    path = tmp_path / "small" / "1" / "manifest.json"
    with lock_of_a_reader(path):
        refused_by_holder(path, lambda: repository.fetch("small", 1))
        assert repository.in_use("small", 1) and not repository.remove("small", 1)
    repository.release(repository.fetch("small", 1))
    with lock_of_a_reader(tmp_path / "small"):
        refused_by_holder(tmp_path / "small", lambda: repository.set_label("small", "stable", 1))
        assert repository.labels("small") == {}
    assert repository.set_label("small", "stable", 1).versions == {"stable": 1}


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("name", ["eviction", "building", "use"])
def test_a_cache_whose_files_are_locked_is_not_waited_for_without_end(
    name: str, tmp_path: Path, publish_copy: Publisher, s3_url: str
) -> None:
    publish_copy(Repository(s3_url))
    cache = tmp_path / "here"
    Repository(s3_url, VersionCache(cache)).open("small")
    (path,) = cache.rglob(name)
    fetched = Repository(s3_url, VersionCache(cache))
    with lock_of_a_reader(path):
        refused_by_holder(path, lambda: fetched.fetch("small", 1))
    fetched.fetch("small", 1)


@pytest.mark.usefixtures("short_waits")
def test_who_makes_progress_is_waited_for_however_long_it_takes(tmp_path: Path) -> None:
    path, asked = tmp_path / "partial", 0
    path.touch()
    holder = os.open(path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def grown() -> int:
        # A holder that is at work at each of many looks, each later than the limit of the wait.
        nonlocal asked
        asked += 1
        if asked == 30:
            fcntl.flock(holder, fcntl.LOCK_UN)
        return asked

    with locked(path, grown):
        assert asked == 30
    os.close(holder)
    assert FileCache(tmp_path).used_bytes() == 0


def ready(client: Any) -> set[tuple[str, int]]:
    index = client.get_model_repository_index().models
    return {(entry.name, int(entry.version)) for entry in index if entry.state == "READY"}


def test_other_models_get_new_versions_while_ones_manifest_is_locked(
    publisher: RankerPublisher, publish_copy: Publisher, tmp_path: Path
) -> None:
    models = Repository(publisher.repository)
    publish_copy(models)
    log = tmp_path / "log"
    with (
        running_server(publisher.repository, log, *POLL, program=SHORT_WAITS) as server,
        client_of(server) as client,
    ):
        home = publisher.repository / "ranker"
        coming = Path(shutil.copytree(home / "1", home / ".coming"))
        edit_manifest(coming, lambda manifest: manifest.update(version=2))
        with lock_of_a_reader(coming / "manifest.json"):
            coming.rename(home / "2")
            until(lambda: "ranker/2/manifest.json" in log.read_text(), "the lock is reported")
            assert f"process {os.getpid()} (" in log.read_text()
            publish_copy(models)
            until(lambda: ("small", 2) in ready(client), "the other's new version")
            assert ("ranker", 2) not in ready(client)
        until(lambda: ("ranker", 2) in ready(client), "the version that was locked")
    assert "internal error" not in log.read_text()
