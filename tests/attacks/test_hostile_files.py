"""Special, oversized and locked files are refused by name, without waiting."""

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sharded_infer.artifacts.table_file import map_table_file
from sharded_infer.errors import ArtifactError, ShardedInferError, StorageError
from sharded_infer.files import file_lock
from sharded_infer.files.file_lock import locked
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.file_cache import FileCache
from sharded_infer.repositories.storage.version_cache import VersionCache
from sharded_infer.repositories.version_copy import copy_version
from sharded_infer.towers.program.archive import read_program
from tests.attacks.test_artifact import INT8
from tests.support.manifest_file import edit_manifest
from tests.support.publisher import Publisher
from tests.support.servers import Command, run, running_server
from tests.support.traffic import POLL, ask, client_of, states
from tests.support.traffic import Publisher as RankerPublisher
from tests.support.waiting import until

_SECONDS = 60.0  # of a command that should end at once


def _socket(path: Path) -> None:
    # Bound by a short name: a socket's is limited.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 200 * 2**30)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "FIFO": (os.mkfifo, "expected a regular file, got a FIFO"),
    "link": (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
    "socket": (_socket, "expected a regular file, got a socket"),
    "folder": (Path.mkdir, "expected a regular file, got a folder"),
    "200 GB": (_sparse, "214748364800 bytes"),
}


def put(path: Path, kind: str) -> str:
    path.unlink(missing_ok=True)
    make, words = KINDS[kind]
    make(path)
    return words


@pytest.fixture
def repository(tmp_path: Path, publish_copy: Publisher) -> Repository:
    repository = Repository(tmp_path / "models")
    for model in ("other", "small"):
        publish_copy(repository, model=model)
    repository.set_label("small", "stable", 1)
    return repository


READERS: dict[str, Callable[[Repository, Path], object]] = {
    "small/labels.json": lambda repository, *_: repository.labels("small"),
    "small/1/manifest.json": lambda repository, *_: repository.open("small"),
    "small/1/tower.pt2": lambda _, path: read_program(path),
    f"small/1/{INT8}": lambda _, path: map_table_file(path),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_and_name_odd_files(repository: Repository, name: str, kind: str) -> None:
    words = put(repository.path / name, kind)
    if kind == "200 GB" and name.endswith(("tower.pt2", INT8)):
        # Such files may be as large: what they say is not what they hold.
        words = "tower.pt2: .*zip" if name.endswith("pt2") else "header of 0 bytes"
    with pytest.raises((ShardedInferError, OSError), match=words) as caught:
        READERS[name](repository, repository.path / name)
    assert Path(name).name in str(caught.value)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("repo list", "labels.json"),
        ("repo verify", "labels.json"),
        ("repo verify", "1/manifest.json"),
        ("inspect -m small -r", "1/plans/cpu-1.json"),
        ("serve -m small --port 0 --http-port 0 -r", "labels.json"),
    ],
)
def test_commands_name_fifos_and_do_not_wait(repository: Repository, words: str, name: str) -> None:
    put(repository.path / "small" / name, "FIFO")
    done = run(*words.split(), repository.path, seconds=_SECONDS)
    assert done.returncode == (0 if words == "repo list" and name != "labels.json" else 1), done
    said = done.stderr + done.stdout
    assert f"small/{name}" in said and "got a FIFO" in said and "Traceback" not in said
    if words.startswith("repo"):
        assert "other" in done.stdout


def _elsewhere(version: Path) -> None:
    version.rename(version.parents[2] / "outside")
    version.symlink_to(version.parents[2] / "outside")


@pytest.mark.parametrize(
    ("hide", "words"),
    [
        (
            lambda version: (version / "manifest.json").unlink(),
            "small/2: expected a folder with a manifest.json",
        ),
        (_elsewhere, "small/2: expected a folder, got a symbolic link"),
        (lambda version: put(version / "manifest.json", "folder"), "got a folder"),
        (lambda version: put(version / "manifest.json", "FIFO"), "got a FIFO"),
    ],
    ids=["no manifest", "outside", "folder", "FIFO"],
)
@pytest.mark.parametrize("is_only", [False, True])
def test_a_version_that_cannot_be_seen_is_reported(
    hide: Callable[[Path], object],
    words: str,
    is_only: bool,
    repository: Repository,
    publish_copy: Publisher,
    sharded_infer: Command,
) -> None:
    publish_copy(repository)
    if is_only:
        repository.remove_label("small", "stable")
        shutil.rmtree(repository.path / "small" / "1")
    hide(repository.path / "small" / "2")
    for more in ((), ("small",)):
        done = sharded_infer("repo", "verify", repository.path, *more)
        assert done.code == 1, done
        assert (is_only and more) or words in done.err, done
    done = sharded_infer("repo", "verify", repository.path, "--json")
    (of_json,) = json.loads(done.out)["errors"]
    assert words in of_json


def test_a_copy_refuses_what_is_no_file(repository: Repository, tmp_path: Path) -> None:
    words = put(repository.path / "small" / "1" / "tower.pt2", "link")
    with pytest.raises(ArtifactError, match="tower.pt2") as caught:
        copy_version(repository, "small", None, Repository(tmp_path / "copies"))
    assert words in str(caught.value)
    assert not (tmp_path / "copies" / "small" / "1").exists()


def test_strange_locks_are_left_alone(repository: Repository, publish_copy: Publisher) -> None:
    strange = repository.path / "small" / ".staging-strange.lock"
    os.mkfifo(strange)
    assert publish_copy(repository) == 2
    assert repository.leftovers("small", 0.0).names == ()
    assert strange.is_fifo()


def test_a_running_server_follows_other_models_while_ones_labels_are_a_fifo(
    publisher: RankerPublisher, publish_copy: Publisher, tmp_path: Path
) -> None:
    publish_copy(Repository(publisher.repository))
    log = tmp_path / "log"
    with running_server(publisher.repository, log, *POLL) as server, client_of(server) as client:
        put(publisher.repository / "small" / "labels.json", "FIFO")
        until(lambda: "small/labels.json" in log.read_text(), "the FIFO is reported")
        version = publisher.good()
        until(lambda: ask(client).version == version, "the other model's new version")
    assert "internal error" not in log.read_text()


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
def test_no_locked_manifest_or_folder_is_awaited(tmp_path: Path, publish_copy: Publisher) -> None:
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

        def is_ready(model: str) -> bool:
            return states(client, model).get(2, ("",))[0] == "READY"

        home = publisher.repository / "ranker"
        coming = Path(shutil.copytree(home / "1", home / ".coming"))
        edit_manifest(coming, lambda manifest: manifest.update(version=2))
        with lock_of_a_reader(coming / "manifest.json"):
            coming.rename(home / "2")
            until(lambda: "ranker/2/manifest.json" in log.read_text(), "the lock is reported")
            assert f"process {os.getpid()} (" in log.read_text()
            publish_copy(models)
            until(lambda: is_ready("small"), "the other's new version")
            assert not is_ready("ranker")
        until(lambda: is_ready("ranker"), "the version that was locked")
    assert "internal error" not in log.read_text()
