"""One small trained model, published once, repositories for it, and what several tests need."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import nn

from kernels.row_format import RowFormat
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from tests.lanes import LONGEST_FILES, THIRDS, assign_lanes, check_processor_time, third_of
from tests.support.forked_command import restored_environment
from tests.support.publisher import Publisher
from tests.support.s3_server import BUCKET, S3Server, s3_server

# Servers, the command and a published model, for every test that talks to one.
pytest_plugins = ("tests.support.servers",)

# The same examples in every run; a busy machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# Both formats, poolings and all policies; odd dims; a table that two features share.
TABLES = (
    TableSpec("ads", rows=50, dim=8, features=("ad_shown", "ad_clicked")),
    TableSpec(
        "country", rows=7, dim=3, pooling="mean", out_of_range="ignore", format=RowFormat.INT8
    ),
    TableSpec("user", rows=31, dim=5, format=RowFormat.BF16, out_of_range="modulo"),
    TableSpec("item", rows=40, dim=6, pooling="mean", format=RowFormat.BF16),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--third", type=int, choices=range(THIRDS), help="run a third of the slow tests"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What imports of test modules set is gone: commands would not fit what forks them."""
    with restored_environment():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """What a test and its fixtures set, or a command that it ran in this process, is gone too."""
    with restored_environment():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Assigns lanes before `-m` chooses; puts long files first, where processes share the tests."""
    assign_lanes(items, config.rootpath)
    third = config.getoption("--third")
    if third is not None:
        chosen = [
            i for i in items if third_of(i.path.relative_to(config.rootpath).as_posix()) == third
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen
    yield
    if hasattr(config, "workerinput"):
        places = {config.rootpath / name: place for place, name in enumerate(LONGEST_FILES)}
        items.sort(key=lambda item: places.get(item.path, len(LONGEST_FILES)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    began = time.process_time()
    yield
    check_processor_time(item, time.process_time() - began)


class TwoHeads(nn.Module):
    """A tower with the outputs `click` `[B]` and `rating` `[B, 3]`."""

    def __init__(self, dense_width: int, embedding_width: int) -> None:
        super().__init__()
        self.shared = nn.Linear(dense_width + embedding_width, 16)
        self.click = nn.Linear(16, 1)
        self.rating = nn.Linear(16, 3)

    def forward(
        self, user_age: torch.Tensor, context: torch.Tensor, embeddings: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        hidden = self.shared(torch.cat([user_age, context, embeddings], dim=1)).relu()
        return {"click": self.click(hidden).squeeze(1).sigmoid(), "rating": self.rating(hidden)}


@pytest.fixture(scope="session")
def trained_spec() -> ModelSpec:
    return ModelSpec(
        name="small",
        tables=TABLES,
        dense=DenseSpec({"user_age": 1, "context": 4}),
        tower=TowerSpec(outputs=("click", "rating")),
    )


@pytest.fixture(scope="session")
def trained_weights(trained_spec: ModelSpec) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in trained_spec.tables}


@pytest.fixture(scope="session")
def trained_tower(trained_spec: ModelSpec) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return TwoHeads(sum(trained_spec.dense.inputs.values()), trained_spec.embedding_width)


@pytest.fixture(scope="session")
def published_version(
    trained_spec: ModelSpec,
    trained_weights: dict[str, torch.Tensor],
    trained_tower: nn.Module,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A version's folder, planned for three topologies; shared by all tests, never to be changed.

    On the last the table `ads` (600 bytes) is split by rows.
    """
    return publish(
        trained_spec,
        trained_weights,
        trained_tower,
        tmp_path_factory.mktemp("published"),
        topologies=("cpu:1", "cpu:2", "cpu:3x0.55KB"),
    ).path


@pytest.fixture
def version_copy(published_version: Path, tmp_path: Path) -> Path:
    return shutil.copytree(published_version, tmp_path / "small" / "1")


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills every uninitialized tensor with NaN (or the largest integer)."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def publish_copy(published_version: Path) -> Publisher:
    return Publisher(open_artifact(published_version))


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    """The server, as this process's environment names it, and a cache of the test's own."""
    for name, value in s3_process.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHARDED_INFER_CACHE", str(tmp_path / "cache"))
    s3_process.requests.clear()
    yield s3_process
    s3_process.break_after = s3_process.refuse = s3_process.lose_answer = None


@pytest.fixture
def s3_url(s3: S3Server, tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture(params=["local", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "models")
    url = request.getfixturevalue("s3_url")
    assert isinstance(url, str)
    return url


@pytest.fixture
def stored(location: str) -> Repository:
    """A repository of either kind, empty."""
    return Repository(location)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Versions to publish, made once (`tests/support/traffic.py`)."""
    # Imported here: what needs no server needs no gRPC either.
    from tests.support.traffic import Shelf

    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture
def publisher(tmp_path: Path, shelf: Any) -> Any:
    """A repository with version 1, to publish more in."""
    from tests.support.traffic import Publisher

    publisher = Publisher(tmp_path / "repository", shelf)
    publisher.good()
    return publisher
