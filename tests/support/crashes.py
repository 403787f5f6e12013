"""Kills publishers and readers at random moments, and checks what they leave."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.part_publication import publish_part
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories.garbage_collection import collect
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.version_cache import VersionCache
from tests.support.delta_model import drawn_change
from tests.support.part_model import SPEC, Scorer, trained_tables
from tests.support.publisher import Publisher
from tests.support.servers import start_command

# Of `start_command`.
PROGRAM = "from tests.support.killed_process import main; main()"


class Victims:
    def __init__(self, asked: IO[str], answers: IO[str]) -> None:
        self._asked, self._answers = asked, answers

    def steps(self, action: str) -> int:
        """Number of steps of the whole work, from one run without a kill."""
        status, steps = self._run(action, 0)
        assert status == 0
        return steps

    def kill_at(self, action: str, step: int) -> bool:
        """Start a process to be killed at a step; False if its work took fewer."""
        status, _ = self._run(action, step)
        assert status in (-signal.SIGKILL, 0)
        return status != 0

    def _run(self, action: str, step: int) -> tuple[int, int]:
        print(action, step, file=self._asked, flush=True)
        status, steps = map(int, self._answers.readline().split())
        return status, steps


@contextmanager
def victims(location: str, version: Path, folder: Path) -> Iterator[Victims]:
    folder.mkdir()
    read, write = os.pipe()
    with (folder / "stderr").open("w") as errors, os.fdopen(write, "w") as asked:
        with os.fdopen(read) as stdin:
            process = start_command(
                location, version, folder, stderr=errors, stdin=stdin, program=PROGRAM
            )
        assert process.stdout is not None
        with process.stdout as answers:
            try:
                yield Victims(asked, answers)
            finally:
                # The process ends with its input.
                asked.close()
                process.wait()
    assert process.returncode == 0, (folder / "stderr").read_text()


def kill_publishers(
    location: str,
    publish: Publisher,
    folder: Path,
    *,
    moments: int,
    seed: int,
    action: str = "publish",
    change: Callable[[Repository], int] | None = None,
) -> None:
    """After each kill all listed versions verify, and the next publisher succeeds."""
    repository, chance = Repository(location), random.Random(seed)
    with victims(location, publish.source.path, folder) as killed:
        # The first creates the folders.
        killed.steps(action)
        steps, checked, kills = killed.steps(action), set[int](), 0
        for _ in range(moments):
            kills += killed.kill_at(action, chance.randint(1, steps))
            version = (change or publish)(repository)
            listed = repository.versions("small")
            assert listed[-1] == version
            assert repository.labels("small")["stable"] in listed
            for number in set(listed) - checked:
                path = repository.fetch("small", number)
                verify_files(open_artifact(path))
                repository.release(path)
            checked |= set(listed)
        assert kills > moments // 2


def kill_deltas(location: str, publish: Publisher, folder: Path, **more: int) -> None:
    """`kill_publishers` for publishers that each change rows of the previous version."""

    def change(repository: Repository) -> int:
        return publish_delta("small", drawn_change(repository), repository).version

    publish(Repository(location))
    kill_publishers(location, publish, folder, **more, action="delta", change=change)


def kill_readers(
    location: str, publish: Publisher, folder: Path, *, moments: int, seed: int
) -> None:
    """After each kill every version can be fetched into the same cache, and verifies."""
    chance = random.Random(seed)
    for number in range(2):
        publish(Repository(location), {"large.bin": random.Random(number).randbytes(100_000)})
    cache, kills = VersionCache(folder / "killed", max_bytes=200_000), 0

    def fetch_all() -> None:
        repository = Repository(location, cache)
        for number in repository.versions("small"):
            path = repository.fetch("small", number)
            verify_files(open_artifact(path))
            repository.release(path)

    with victims(location, publish.source.path, folder) as killed:
        # The cache has no room for both: the first version is always gone when a victim wants it.
        fetch_all()
        steps = killed.steps("fetch")
        for _ in range(moments):
            fetch_all()
            kills += killed.kill_at("fetch", chance.randint(1, steps))
        fetch_all()
    assert kills > moments // 2


def kill_collections(
    location: str, publish: Publisher, folder: Path, *, moments: int, seed: int
) -> None:
    """After each kill all listed versions verify, and the next collection finishes the work."""
    repository, chance, kills = Repository(location), random.Random(seed), 0
    repository.set_label("small", "stable", publish(repository))

    def publish_three() -> None:
        for _ in range(3):
            publish(repository, {"notes.bin": chance.randbytes(1000)})

    with victims(location, publish.source.path, folder) as killed:
        publish_three()
        steps = killed.steps("collect")
        for _ in range(moments):
            publish_three()
            kills += killed.kill_at("collect", chance.randint(1, steps))
            labels = repository.label_history("small")
            assert labels.versions == {"stable": 1}
            listed = repository.versions("small")
            for number in listed:
                repository.verify("small", number)
            collect(repository, "small", keep=1, safe_seconds=-1)
            assert repository.versions("small") == [1, listed[-1]]
            assert repository.label_history("small").removing == ()
            assert repository.leftovers("small", -1).names == ()
    assert kills > moments // 2


def kill_parts(location: str, source: Path, folder: Path, *, moments: int, seed: int) -> None:
    """After each kill a part is complete or absent, and made again it can be joined."""
    repository, chance, kills = Repository(location), random.Random(seed), 0
    weights = trained_tables()
    with victims(location, source, folder) as killed:
        killed.steps("part")
        [name] = repository.parts.names("ranker")
        record, steps = repository.parts.record("ranker", name), killed.steps("part")
        for _ in range(moments):
            # Killed at the first attempt, and at a repetition.
            if chance.random() < 0.5:
                repository.remove_leftovers("ranker", repository.leftovers("ranker", -1))
            kills += killed.kill_at("part", chance.randint(1, steps))
            assert repository.parts.record("ranker", name) in (None, record)
            for part in (1, 2):
                publish_part(SPEC, weights, repository, part=part, parts=2)
            assert repository.parts.record("ranker", name) == record
            version = publish(SPEC, weights, Scorer(), repository, parts=2).version
            repository.verify("ranker", version)
    assert kills > moments // 2
