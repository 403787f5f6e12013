"""What is no regular file, or is far too large, in a repository: refused, not waited for."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sharded_infer.artifacts.table_file import map_table_file
from sharded_infer.errors import ArtifactError, ShardedInferError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.version_copy import copy_version
from sharded_infer.towers.program.archive import read_program
from tests.attacks.test_artifact import INT8
from tests.support.publisher import Publisher
from tests.support.servers import Command, run, running_server
from tests.support.traffic import POLL, ask, client_of
from tests.support.traffic import Publisher as RankerPublisher
from tests.support.waiting import until

_SECONDS = 60.0  # of a command that should end at once


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


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
    "FIFO": (_fifo, "expected a regular file, got a FIFO"),
    "link": (_endless, "a symbolic link"),
    "socket": (_socket, "expected a regular file, got a socket"),
    "folder": (Path.mkdir, "expected a regular file, got a folder"),
    "200 GB": (_sparse, "214748364800 bytes"),
}


def put(path: Path, kind: str) -> str:
    """Puts something else in a file's place; what is said of it."""
    path.unlink(missing_ok=True)
    make, words = KINDS[kind]
    make(path)
    return words


@pytest.fixture
def repository(tmp_path: Path, publish_copy: Publisher) -> Repository:
    """Two models; one of them has a label."""
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
def test_every_reader_refuses_what_is_no_file_or_too_large_and_names_it(
    repository: Repository, name: str, kind: str
) -> None:
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
def test_commands_do_not_wait_for_a_fifo_and_name_it(
    repository: Repository, words: str, name: str
) -> None:
    put(repository.path / "small" / name, "FIFO")
    done = run(*words.split(), repository.path, seconds=_SECONDS)
    assert done.returncode == (0 if words == "repo list" and name != "labels.json" else 1), done
    said = done.stderr + done.stdout
    assert f"small/{name}" in said and "got a FIFO" in said and "Traceback" not in said
    if words.startswith("repo"):
        assert "other" in done.stdout


def _without_manifest(version: Path) -> None:
    (version / "manifest.json").unlink()


def _elsewhere(version: Path) -> None:
    version.rename(version.parents[2] / "outside")
    version.symlink_to(version.parents[2] / "outside")


@pytest.mark.parametrize(
    ("hide", "words"),
    [
        (_without_manifest, "small/2: expected a folder with a manifest.json"),
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
    (of_json,) = json.loads(sharded_infer("repo", "verify", repository.path, "--json").out)[
        "errors"
    ]
    assert words in of_json


def test_a_copy_refuses_what_is_no_file(repository: Repository, tmp_path: Path) -> None:
    words = put(repository.path / "small" / "1" / "tower.pt2", "link")
    with pytest.raises(ArtifactError, match="tower.pt2") as caught:
        copy_version(repository, "small", None, Repository(tmp_path / "copies"))
    assert words in str(caught.value)
    assert not (tmp_path / "copies" / "small" / "1").exists()


def test_locks_of_a_publisher_that_are_none_are_left_alone(
    repository: Repository, publish_copy: Publisher
) -> None:
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
