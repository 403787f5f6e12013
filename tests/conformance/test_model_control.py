"""Loading and unloading as NVIDIA's clients ask for it."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.repositories.repository import Repository
from tests.conformance.clients import Client, ConformingServer, infer, make_client, refused
from tests.conformance.conftest import conforming, protected
from tests.support.publisher import Publisher
from tests.support.servers import MODEL, Ranker, good_inputs, running_server

CLIENTS = {"1 worker": "grpc", "2 workers": "http", "protected": "aio"}


@pytest.fixture(scope="module")
def publish(ranker: Ranker) -> Publisher:
    return Publisher(open_artifact(ranker.repository / MODEL / "1"))


@pytest.fixture(scope="module")
def repository(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the ranker, and of a second model with the same scores."""
    folder = tmp_path_factory.mktemp("controlled") / "repository"
    shutil.copytree(ranker.repository, folder)
    return folder


@pytest.fixture(scope="module", params=CLIENTS)
def controlled(
    request: pytest.FixtureRequest,
    repository: Path,
    publish: Publisher,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ConformingServer]:
    """The last has TLS, tokens and two workers."""
    if not (repository / "second").exists():
        publish(Repository(repository), model="second")
    folder = tmp_path_factory.mktemp("server")
    log = folder / "stderr"
    protection, safety = None, ()
    if request.param == "protected":
        protection, safety = protected(folder)
    workers = 1 if request.param == "1 worker" else 2
    options = ("--model-control", "explicit", "--load-model", MODEL, "--workers", workers, *safety)
    with running_server(repository, log, *options) as server:
        assert [model["name"] for model in server.ready["models"]] == [MODEL]
        yield conforming(server, protection)
    assert "internal error" not in log.read_text(), log.read_text()


@pytest.fixture
def loader(request: pytest.FixtureRequest, controlled: ConformingServer) -> Iterator[Client]:
    """Each server by another client; behind two workers another process answers HTTP."""
    client = make_client(CLIENTS[request.node.callspec.params["controlled"]], controlled)
    yield client
    client.close()


def states(client: Client, model: str) -> dict[str, tuple[str, str]]:
    models = client.describe("get_model_repository_index").get("models", [])
    return {
        entry["version"]: (entry["state"], entry.get("reason", ""))
        for entry in models
        if entry["name"] == model
    }


def test_a_model_is_served_between_its_load_and_its_unload(loader: Client, ranker: Ranker) -> None:
    inputs = good_inputs(3)
    for _ in range(2):
        assert states(loader, "second") == {"1": ("UNAVAILABLE", "unloaded")}
        refused("UNAVAILABLE", "unloaded", loader, lambda: infer(loader, "second", inputs))
        assert not loader.call("is_model_ready", "second")
        loader.call("load_model", "second")
        assert loader.call("is_model_ready", "second")
        assert states(loader, "second") == {"1": ("READY", "")}
        found = infer(loader, "second", inputs).as_numpy("score")
        assert np.array_equal(found, ranker.predict(inputs)["score"])
        loader.call("unload_model", "second", unload_dependents=True)
    assert states(loader, MODEL) == {"1": ("READY", "")}


def test_a_new_model_can_be_loaded(loader: Client, repository: Path, publish: Publisher) -> None:
    name = f"new-{len(list(repository.iterdir()))}"
    refused("NOT_FOUND", name, loader, lambda: loader.call("load_model", name))
    publish(Repository(repository), model=name)
    loader.call("load_model", name)
    infer(loader, name, good_inputs(2))
    stats = loader.describe("get_inference_statistics", name)["model_stats"]
    assert [int(entry["inference_count"]) for entry in stats] == [2]
    loader.call("unload_model", name)


def test_a_failed_load_says_its_step(loader: Client, repository: Path, publish: Publisher) -> None:
    name = f"broken-{len(list(repository.iterdir()))}"
    publish(Repository(repository), model=name)
    tower = repository / name / "1" / "tower.pt2"
    whole = tower.read_bytes()
    tower.write_bytes(whole[:-1])
    words = "version 1 failed at verify"
    refused("UNAVAILABLE", words, loader, lambda: loader.call("load_model", name))
    tower.write_bytes(whole)
    loader.call("load_model", name)
    infer(loader, name, good_inputs(2))
    loader.call("unload_model", name)


def test_a_configuration_or_a_name_that_no_model_can_have_is_refused(loader: Client) -> None:
    overriding = partial(loader.call, "load_model", "second", config="{}")
    refused("INVALID_ARGUMENT", "config", loader, overriding)
    for name in ("nobody", "", "..", "../ranker", "ranker/1", "a\0b", "x" * 5000):
        for method in ("load_model", "unload_model"):
            refused("NOT_FOUND", "", loader, lambda: loader.call(method, name))  # noqa: B023


def test_a_server_may_begin_empty(tmp_path: Path, publish: Publisher, repository: Path) -> None:
    empty = tmp_path / "repository"
    empty.mkdir()
    with running_server(empty, tmp_path / "log", "--model-control", "explicit") as server:
        client = make_client("grpc", server)
        assert server.ready["models"] == [] and client.call("is_server_ready")
        assert client.describe("get_model_repository_index") == {}
        publish(Repository(empty), model="first")
        client.call("load_model", "first")
        infer(client, "first", good_inputs(2))
        # One that is gone from the repository is served on, and can be unloaded.
        shutil.rmtree(empty / "first")
        refused("NOT_FOUND", "first", client, lambda: client.call("load_model", "first"))
        infer(client, "first", good_inputs(2))
        client.call("unload_model", "first")
        asking = partial(infer, client, "first", good_inputs(2))
        refused("UNAVAILABLE", "first", client, asking)
        client.close()


def test_a_server_that_follows_its_repository_loads_nothing_else(client: Client) -> None:
    client.call("load_model", MODEL)
    refused("NOT_FOUND", "nobody", client, lambda: client.call("load_model", "nobody"))
    refused("UNAVAILABLE", "polling", client, lambda: client.call("unload_model", MODEL))
