"""Takes the pictures of the live page in docs/images: a server under load, in Chromium.

    PYTHONPATH=. python docs/generate_live_page.py

It publishes two versions of a model of random weights, and a third one that lacks a file, while
requests come at a rate that rises and falls.
"""

import argparse
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import tritonclient.grpc as triton
from PIL import Image
from playwright.sync_api import sync_playwright
from torch import Tensor, nn

from sharded_infer import DenseSpec, ModelSpec, TableSpec, TowerSpec, publish
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.feature_statistics import FeatureStatistics
from tests.support.live_page import CHROMIUM
from tests.support.servers import RunningServer, running_server
from tests.support.waiting import in_threads

TARGET = Path(__file__).parent / "images"
MODEL = "feed_ranker"
TOPOLOGY = "cpu:4"
SIZES = ((1280, 900), (390, 844))
NAMES = (
    "user", "item", "author", "topic", "city", "device", "language", "hour", "query", "session",
    "campaign", "page", "channel", "age_band", "history", "liked", "skipped", "shared",
)  # fmt: skip


class Tower(nn.Module):
    """A small tower over random weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width + 8, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Scores `[B]`."""
        score: Tensor = self.layers(torch.cat([dense, embeddings], dim=1))
        return torch.sigmoid(score).squeeze(1)


def spec() -> ModelSpec:
    """Tables of several sizes, some of which are looked up more often."""
    tables = tuple(
        TableSpec(name, rows=int(60 * 1.75 ** (place % 13)) + 40, dim=16 << place % 3)
        for place, name in enumerate(NAMES)
    )
    statistics = {
        name: FeatureStatistics(pooling_factor=20.0) for name in ("history", "liked", "skipped")
    }
    return ModelSpec(
        name=MODEL,
        tables=tables,
        dense=DenseSpec({"dense": 8}),
        tower=TowerSpec(outputs=("score",)),
        statistics=statistics,
    )


def publish_version(repository: Path, seed: int) -> Path:
    """Publishes a version of random weights; its folder."""
    torch.manual_seed(seed)
    model = spec()
    tables = {t.name: nn.EmbeddingBag(t.rows, t.dim, mode="sum") for t in model.tables}
    tower = Tower(model.embedding_width)
    return publish(model, tables, tower, repository, topologies=(TOPOLOGY,)).path


@contextmanager
def load(server: RunningServer, clients: int) -> Iterator[None]:
    """Requests of several sizes, at varying rates; some of them invalid."""
    stop = threading.Event()

    def run(seed: int) -> None:
        generator = np.random.default_rng(seed)
        with triton.InferenceServerClient(server.grpc_url) as client:
            while not stop.wait(generator.exponential(0.02 + 0.012 * math.sin(time.time() / 25))):
                batch = int(generator.choice([1, 4, 16, 64, 200]))
                wrong = generator.random() < 0.004
                arrays = {"dense": generator.standard_normal((batch, 8), dtype=np.float32)}
                for table in spec().tables:
                    highest = 10**9 if wrong else table.rows
                    arrays[table.name] = generator.integers(0, highest, (batch, 2))
                inputs = []
                for name, array in arrays.items():
                    kind = "FP32" if name == "dense" else "INT64"
                    inputs.append(triton.InferInput(name, list(array.shape), kind))
                    inputs[-1].set_data_from_numpy(array)
                late = 1 if generator.random() < 0.003 else None
                try:
                    client.infer(MODEL, inputs, timeout=late)
                except triton.InferenceServerException:
                    continue

    with in_threads(clients, run, stop):
        yield


def take_pictures(url: str, target: Path) -> None:
    """The page at two widths, light and dark."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            for width, height in SIZES:
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=theme
                )
                page.goto(url)
                page.wait_for_selector("body[data-drawn]")
                page.wait_for_selector("#plan figure")
                page.wait_for_timeout(4500)
                picture = target / f"live-page-{width}-{theme}.webp"
                with Image.open(BytesIO(page.screenshot(full_page=True))) as taken:
                    # Keeps the colours of small things distinct.
                    few = taken.convert("RGB").quantize(
                        160, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
                    )
                few.convert("RGB").save(picture, lossless=True, quality=100, method=6)
                print(f"{picture}: {picture.stat().st_size:,} bytes")  # noqa: T201
                page.close()
        browser.close()


def main() -> None:
    """Serves, loads and takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of load before the pictures")
    parser.add_argument("--target", type=Path, default=TARGET)
    arguments = parser.parse_args()
    seconds, target = arguments.seconds, arguments.target
    # Served by a relative path, the only one that the pictures show.
    target = target.absolute()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        repository = Path("models")
        publish_version(repository, 1)
        labels = Repository(repository)
        labels.set_label(MODEL, "stable", 1)
        options = ("--workers", 2, "--follow", "labels:stable,canary", "--poll-seconds", 1)
        log = Path("log")
        with running_server(repository, log, *options) as server, load(server, clients=2):
            time.sleep(seconds / 3)
            publish_version(repository, 2)
            labels.set_label(MODEL, "canary", 2)
            time.sleep(seconds / 3)
            labels.set_label(MODEL, "stable", 2)
            time.sleep(seconds / 6)
            broken = publish_version(repository, 3)
            (broken / "tower.pt2").unlink()
            labels.set_label(MODEL, "canary", 3)
            time.sleep(seconds / 6)
            take_pictures(server.metrics_url.removesuffix("metrics"), target)


if __name__ == "__main__":
    main()
