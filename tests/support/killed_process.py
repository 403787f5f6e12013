"""A process whose children do one thing each, and are killed at a given step of it.

Its arguments are a repository, a published version and a folder for temporary files. A line
`publish 17` on stdin starts a child that publishes a version and moves a label to it, and is killed
at its 17th step: a file opened, renamed or removed, a connection made. `fetch 17`, `delta 17`,
`collect 17` and `part 17` likewise. The answer is the child's exit status and, if it was not
killed, its number of steps.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.part_publication import publish_part
from sharded_infer.repositories.garbage_collection import collect
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.version_cache import VersionCache
from tests.support.delta_model import drawn_change
from tests.support.part_model import SPEC, trained_tables
from tests.support.publisher import Publisher

_STEPS = ("open", "os.", "socket.", "fcntl.", "shutil.")


class Countdown:
    def __init__(self, steps: int) -> None:
        self.taken = 0
        self._last = steps

    def __call__(self, event: str, _arguments: object) -> None:
        if event.startswith(_STEPS):
            self.taken += 1
            if self.taken == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


def work(action: str, location: str, source: str, steps: int) -> int:
    countdown = Countdown(steps)
    if action == "publish":
        repository, publisher = Repository(location), Publisher(open_artifact(Path(source)))
        sys.addaudithook(countdown)
        version = publisher(repository, {"notes.bin": os.urandom(1000)})
        repository.set_label("small", "stable", version)
    elif action == "delta":
        repository = Repository(location)
        sys.addaudithook(countdown)
        published = publish_delta("small", drawn_change(repository), repository)
        repository.set_label("small", "stable", published.version)
    elif action == "part":
        repository, weights = Repository(location), trained_tables()
        sys.addaudithook(countdown)
        publish_part(SPEC, weights, repository, part=1, parts=2)
    elif action == "collect":
        repository = Repository(location)
        sys.addaudithook(countdown)
        collect(repository, "small", keep=1, safe_seconds=-1)
    else:
        # The same cache every time, of a size for less than two versions.
        cache = VersionCache(Path(tempfile.gettempdir()) / "killed", max_bytes=200_000)
        repository = Repository(location, cache)
        sys.addaudithook(countdown)
        repository.fetch("small", 1)
    return countdown.taken


def answer(status: int, steps: int) -> None:
    sys.stdout.write(f"{status} {steps}\n")
    sys.stdout.flush()


def main() -> None:
    tempfile.tempdir = sys.argv[3]
    for line in sys.stdin:
        action, steps = line.split()
        child = os.fork()
        if child == 0:
            answer(0, work(action, sys.argv[1], sys.argv[2], int(steps)))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            answer(status, 0)
