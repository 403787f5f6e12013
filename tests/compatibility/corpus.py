"""Where the files of a release lie, and what is kept beside them.

In `<release>.tar.xz`:

    models/                                the repository
    requests/<model>.safetensors           inputs of one request, as clients send them
    messages/<model>.predict               the same as the release's client sends it
    scores/<model>-<version>.safetensors   `<topology>/<output>`, as the release scored
    files/                                 samples, descriptions, topologies
    values.json                            what it read in `files` and in the labels
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from sharded_infer import Repository, open_model
from sharded_infer.towers.host_products import ProductsOption
from tests.compatibility.archive import archive_of, releases_in, unpacked

Arrays = dict[str, NDArray[np.generic]]
FOLDER = Path(__file__).parent


class Corpus(NamedTuple):
    """What one release wrote, in a folder."""

    folder: Path
    release: str = ""

    @property
    def models(self) -> Path:
        """The repository."""
        return self.folder / "models"

    @property
    def files(self) -> Path:
        """Samples, descriptions and topologies."""
        return self.folder / "files"

    def versions(self) -> list[tuple[str, int]]:
        """Every model and version."""
        repository = Repository(self.models)
        return [(m, version) for m in repository.models() for version in repository.versions(m)]

    def path(self, model: str, version: int) -> Path:
        """A version's folder."""
        return self.models / model / str(version)

    def request(self, model: str) -> Arrays:
        """The inputs of the model's request."""
        return dict(load_file(self.folder / "requests" / f"{model}.safetensors"))

    def scores(self, model: str, version: int) -> Arrays:
        """By `<topology>/<output>`."""
        return dict(load_file(self.folder / "scores" / f"{model}-{version}.safetensors"))

    def message_path(self, model: str) -> Path:
        """The file of the model's request as bytes of a PredictRequest."""
        return self.folder / "messages" / f"{model}.predict"

    def values(self) -> dict[str, Any]:
        """What the release read."""
        values: dict[str, Any] = json.loads((self.folder / "values.json").read_text())
        return values

    def keep_request(self, model: str, arrays: Arrays) -> None:
        """Stores the request of a model."""
        _store(self.folder / "requests" / f"{model}.safetensors", arrays)

    def keep_scores(self) -> None:
        """Scores each model's request by every plan of every version, and stores the scores."""
        for model, version in self.versions():
            scores = score_all(self.path(model, version), self.request(model))
            _store(self.folder / "scores" / f"{model}-{version}.safetensors", scores)

    def keep_values(self, values: Mapping[str, Any]) -> None:
        """Stores what the release read."""
        text = json.dumps(values, indent=1, sort_keys=True, allow_nan=False)
        (self.folder / "values.json").write_text(text + "\n")


def releases() -> list[str]:
    """The releases that there is a corpus of, the newest last."""
    return sorted(releases_in(FOLDER), key=lambda name: [int(part) for part in name.split(".")])


def stored(release: str) -> Corpus:
    """The corpus of a release, unpacked; never to be changed."""
    return Corpus(unpacked(archive_of(FOLDER, release)), release)


def copied(release: str, folder: Path) -> Corpus:
    """A corpus that a test may change, in a folder to be made."""
    return Corpus(Path(shutil.copytree(stored(release).folder, folder)), release)


def score_all(version: Path, request: Arrays) -> Arrays:
    """The scores of a request by every plan, with one intra-op thread, as servers have it.

    In the published precision, whatever is faster here.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plans = open_model(version).artifact.manifest.plans
        return {
            f"{topology}/{output}": found
            for topology in plans
            for output, found in open_model(
                version, topology=topology, products=ProductsOption.PUBLISHED
            )
            .predict(request)
            .items()
        }
    finally:
        torch.set_num_threads(threads)


def _store(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
