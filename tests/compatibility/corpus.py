"""Where the files of a release lie, and what is kept beside them.

In `<release>.tar.xz`:

    models/                                the repository
    requests/<model>.safetensors           inputs of one request, as clients send them
    messages/<model>.predict               the same as the release's client sends it
    scores/<model>-<version>.safetensors   `<topology>/<output>`, as the release scored
    files/                                 samples, descriptions, topologies
    values.json                            what it read in `files` and in the labels
    surface.json                           its names (`surface.py`)
"""

import atexit
import json
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from sharded_infer import Repository, open_model
from sharded_infer.towers.host_products import ProductsOption

Arrays = dict[str, NDArray[np.generic]]
FOLDER = Path(__file__).parent
_SUFFIX = ".tar.xz"


class Corpus(NamedTuple):
    """What one release wrote, in a folder."""

    folder: Path
    release: str = ""

    @property
    def models(self) -> Path:
        return self.folder / "models"

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def versions(self) -> list[tuple[str, int]]:
        repository = Repository(self.models)
        return [(m, version) for m in repository.models() for version in repository.versions(m)]

    def path(self, model: str, version: int) -> Path:
        return self.models / model / str(version)

    def request(self, model: str) -> Arrays:
        return dict(load_file(self.folder / "requests" / f"{model}.safetensors"))

    def scores(self, model: str, version: int) -> Arrays:
        """By `<topology>/<output>`."""
        return dict(load_file(self.folder / "scores" / f"{model}-{version}.safetensors"))

    def message_path(self, model: str) -> Path:
        return self.folder / "messages" / f"{model}.predict"

    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.folder / "values.json").read_text())
        return values


def releases() -> list[str]:
    names = [path.name.removesuffix(_SUFFIX) for path in FOLDER.glob(f"*{_SUFFIX}")]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


@cache
def stored(release: str) -> Corpus:
    """The corpus of a release, unpacked for this process; never to be changed."""
    home = Path(tempfile.mkdtemp(prefix="corpus-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with tarfile.open(FOLDER / f"{release}{_SUFFIX}") as tar:
        tar.extractall(home, filter="data")
    return Corpus(home, release)


def copied(release: str, folder: Path) -> Corpus:
    return Corpus(Path(shutil.copytree(stored(release).folder, folder)), release)


def score_all(version: Path, request: Arrays) -> Arrays:
    """The scores of a request by every plan, with one intra-op thread, as servers have it."""
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
