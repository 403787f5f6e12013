"""Constant requests from real clients, their outcomes, and versions broken on purpose."""

import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from tritonclient.utils import InferenceServerException

from tests.support.manifest_file import edit_manifest
from tests.support.servers import DATATYPES, MODEL, RunningServer, good_inputs, publish_ranker
from tests.support.waiting import in_threads

BATCH = 4
# For servers that follow their repository.
POLL = ("--poll-seconds", 0.2)
# Scores differ by rounding, depending on the batch.
TOLERANCE = 1e-4


@dataclass(slots=True)
class Answer:
    began: float
    ended: float
    version: int = 0
    scores: NDArray[np.float32] | None = None
    error: str = ""


@dataclass(slots=True)
class Traffic:
    answers: list[Answer] = field(default_factory=list)

    def errors(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error]

    def versions(self) -> list[int]:
        """Versions, in the order in which they were first seen."""
        return list(dict.fromkeys(a.version for a in self.answers if not a.error))

    def wrong(self, expected: Mapping[int, NDArray[np.float32]]) -> list[Answer]:
        """Answers whose scores differ from the version that they name."""
        return [
            answer
            for answer in self.answers
            if answer.scores is not None
            and not np.allclose(answer.scores, expected[answer.version], atol=TOLERANCE, rtol=0)
        ]


def triton_inputs(
    inputs: Mapping[str, NDArray[np.generic]], library: ModuleType = triton
) -> list[Any]:
    """A request's inputs as tritonclient takes them, for gRPC or another of its libraries."""
    given = []
    for name, array in inputs.items():
        given.append(library.InferInput(name, list(array.shape), DATATYPES[array.dtype.name]))
        given[-1].set_data_from_numpy(array)
    return given


def ask(client: Any, version: str = "", parameters: dict[str, Any] | None = None) -> Answer:
    began = time.monotonic()
    try:
        result = client.infer(
            MODEL, triton_inputs(good_inputs(BATCH)), model_version=version, parameters=parameters
        )
    except InferenceServerException as error:
        return Answer(began, time.monotonic(), error=str(error))
    scores = result.as_numpy("score")
    return Answer(began, time.monotonic(), int(result.get_response().model_version), scores)


@contextmanager
def client_of(server: RunningServer) -> Iterator[Any]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with triton.InferenceServerClient(server.grpc_url, channel_args=options) as client:
        yield client


@contextmanager
def traffic(server: RunningServer, clients: int = 3, pause: float = 0.002) -> Iterator[Traffic]:
    seen, stop = Traffic(), threading.Event()

    def run(_: int) -> None:
        with client_of(server) as client:
            while not stop.wait(pause):
                seen.answers.append(ask(client))

    with in_threads(clients, run, stop):
        yield seen


class Shelf:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._made: dict[int, tuple[Path, NDArray[np.float32]]] = {}

    def ranker(self, number: int) -> tuple[Path, NDArray[np.float32]]:
        """A version's folder, and its scores of the usual inputs."""
        if number not in self._made:
            made = publish_ranker(self._home / str(number), seed=100 + number)
            scores = made.predict(good_inputs(BATCH))["score"]
            self._made[number] = made.model.artifact.path, scores
        return self._made[number]


class Publisher:
    """Publishes rankers of other scores, and broken ones, each by one rename."""

    def __init__(self, repository: Path, shelf: Shelf) -> None:
        self.repository = repository
        self.location = str(repository)
        self._shelf = shelf
        self.expected: dict[int, NDArray[np.float32]] = {}
        self._latest = 0

    def good(self) -> int:
        return self._put()

    def with_flipped_bit(self) -> int:
        return self._put(lambda path: flip_bit(next(path.glob("tables/*.safetensors"))))

    def with_other_golden_scores(self) -> int:
        def change(path: Path) -> None:
            golden = path / "golden.safetensors"
            tensors = load_file(golden)
            tensors["score.score"] = tensors["score.score"] + np.float32(0.5)
            golden.write_bytes(save(tensors))
            text = golden.read_bytes()
            record = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            edit_manifest(path, lambda manifest: manifest["files"].update({golden.name: record}))

        return self._put(change)

    def without_a_tower(self) -> int:
        return self._put(lambda path: (path / "tower.pt2").unlink())

    def _put(self, breaks: Callable[[Path], None] = lambda path: None) -> int:
        self._latest += 1
        source, self.expected[self._latest] = self._shelf.ranker(self._latest)
        home = self.repository / MODEL
        coming = Path(shutil.copytree(source, home / f".coming-{self._latest}"))
        edit_manifest(coming, lambda manifest: manifest.update(version=self._latest))
        breaks(coming)
        # Visible with all its files, or not at all.
        coming.rename(home / str(self._latest))
        return self._latest


def flip_bit(path: Path) -> None:
    """Flip the last bit of a file; a second call restores it."""
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))


def states(client: Any, model: str = MODEL) -> dict[int, tuple[str, str]]:
    index = client.get_model_repository_index().models
    return {int(e.version): (e.state, e.reason) for e in index if e.name == model}
