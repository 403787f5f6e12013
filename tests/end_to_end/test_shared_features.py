"""Features of several tables, sent once: scored as the trained modules do, by every way to ask."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tritonclient.grpc import service_pb2

from sharded_infer import Model, ModelSpec, QuantizationSpec, TableSpec, open_model, publish
from sharded_infer.client import Bags, Client, PredictError
from sharded_infer.errors import RequestError
from sharded_infer.specs.model_spec import DenseSpec
from tests.end_to_end.test_rest import ask
from tests.support.servers import Arrays, RunningServer, infer_request, json_inputs, running_server

USERS, ITEMS, GENRES = 23, 31, 7
PADDING = 0
# NeuMF's two pairs of tables, and the first-order weights of DeepFM and Wide&Deep.
SPEC = ModelSpec(
    "neumf",
    (
        TableSpec("user_gmf", USERS, 4, features=("user",)),
        TableSpec("item_gmf", ITEMS, 4, features=("item",)),
        TableSpec("user_mlp", USERS, 6, features=("user",)),
        TableSpec("item_mlp", ITEMS, 6, features=("item",), required=True),
        TableSpec("genre", GENRES, 5, pooling="mean", features=("genres",), padding_idx=PADDING),
        TableSpec("wide", ITEMS, 1, features=("genres", "item"), out_of_range="modulo"),
    ),
    DenseSpec({"age": 1}),
    quantization=QuantizationSpec("fp32"),
)


class Tower(nn.Module):
    """GMF beside an MLP, and the wide part's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(6 + 6 + 5 + 1, 8)
        self.last = nn.Linear(4 + 8, 1)

    def forward(self, age: Tensor, embeddings: Tensor) -> Tensor:
        user_gmf, item_gmf, user_mlp, item_mlp, genre, wide = torch.split(
            embeddings, [4, 4, 6, 6, 5, 2], dim=1
        )
        hidden = torch.relu(self.mlp(torch.cat([user_mlp, item_mlp, genre, age], dim=1)))
        deep = self.last(torch.cat([user_gmf * item_gmf, hidden], dim=1)).squeeze(1)
        return torch.sigmoid(deep + wide.sum(dim=1))


@dataclass(frozen=True, slots=True)
class Trained:
    """Modules as they are trained, and the version that they were published as."""

    tables: dict[str, nn.EmbeddingBag]
    tower: Tower
    repository: Path
    model: Model

    def scores(self, users: Tensor, items: Tensor, genres: list[list[int]], age: Tensor) -> Tensor:
        """What the modules score, eagerly, each with the ids it was trained on."""
        offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in genres])[:-1]])
        flat = torch.tensor([genre for bag in genres for genre in bag], dtype=torch.int64)
        single = torch.arange(len(users))
        parts = [
            self.tables["user_gmf"](users, single),
            self.tables["item_gmf"](items, single),
            self.tables["user_mlp"](users, single),
            self.tables["item_mlp"](items, single),
            self.tables["genre"](flat, offsets),
            self.tables["wide"](flat, offsets),
            self.tables["wide"](items, single),
        ]
        with torch.no_grad():
            scores: Tensor = self.tower(age=age, embeddings=torch.cat(parts, dim=1))
        return scores


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        tables = {
            t.name: nn.EmbeddingBag.from_pretrained(
                torch.randn(t.rows, t.dim), mode=t.pooling or "sum", padding_idx=t.padding_idx
            )
            for t in SPEC.tables
        }
        tower = Tower()
    repository = tmp_path_factory.mktemp("shared") / "repository"
    published = publish(SPEC, tables, tower, repository, topologies=("cpu:2",))
    return Trained(tables, tower, repository, open_model(published.path))


@pytest.fixture(scope="module")
def server(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("served") / "log"
    with running_server(trained.repository, log, "--workers", 2) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and what the trained modules say of it."""

    inputs: dict[str, NDArray[Any]]
    genres: list[list[int]]
    wanted: NDArray[np.float32]


@pytest.fixture(params=range(4))
def case(request: pytest.FixtureRequest, trained: Trained) -> Case:
    """Bags of padding alone, and empty ones, occur."""
    generator = np.random.default_rng(request.param)
    batch = int(generator.integers(1, 9))
    genres = [
        [int(i) for i in generator.integers(0, GENRES, generator.integers(0, 4))]
        for _ in range(batch)
    ]
    genres[0] = [PADDING]
    inputs: dict[str, NDArray[Any]] = {
        "age": generator.random((batch, 1), dtype=np.float32),
        "user": generator.integers(0, USERS, batch),
        "item": generator.integers(0, ITEMS, batch),
        "genres": np.array([i for bag in genres for i in bag], np.int64),
        "genres.lengths": np.array([len(bag) for bag in genres], np.int32),
    }
    wanted = trained.scores(
        torch.from_numpy(inputs["user"]),
        torch.from_numpy(inputs["item"]),
        genres,
        torch.from_numpy(inputs["age"]),
    )
    return Case(inputs, genres, wanted.numpy())


def infer(server: RunningServer, inputs: Arrays) -> NDArray[np.float32]:
    with server.stub() as stub:
        response = stub.ModelInfer(infer_request(inputs, model=SPEC.name))
    return np.frombuffer(response.raw_output_contents[0], np.float32)


def at_once(case: Case) -> dict[str, NDArray[Any]]:
    """The inputs in their order: user, item, genres."""
    one = np.ones_like(case.inputs["genres.lengths"])
    return {
        "age": case.inputs["age"],
        "sparse.values": np.concatenate([case.inputs[n] for n in ("user", "item", "genres")]),
        "sparse.lengths": np.stack([one, one, case.inputs["genres.lengths"]]),
    }


def test_grpc_scores_as_the_modules_do(server: RunningServer, case: Case) -> None:
    for inputs in (case.inputs, at_once(case)):
        np.testing.assert_allclose(infer(server, inputs), case.wanted, atol=1e-5)


def test_rest_scores_as_the_modules_do(server: RunningServer, case: Case) -> None:
    body = {"inputs": json_inputs(case.inputs)}
    status, answer, _ = ask(server, "POST", f"/v2/models/{SPEC.name}/infer", body)
    assert status == 200, answer
    found = answer["outputs"][0]["data"]
    np.testing.assert_allclose(found, case.wanted, atol=1e-5)


def test_our_client_and_python_score_as_the_modules_do(
    server: RunningServer, trained: Trained, case: Case
) -> None:
    for inputs in (case.inputs, at_once(case)):
        scores = trained.model.predict(inputs)["score"]
        np.testing.assert_allclose(scores, case.wanted, atol=1e-5)
    candidates = {n: case.inputs[n] for n in ("age", "user", "item")}
    bags = Bags(case.inputs["genres"], case.inputs["genres.lengths"])
    with Client(server.grpc_url) as client:
        found = client.predict(
            SPEC.name, candidates=[candidates, {"genres": bags}], timeout_seconds=60.0
        )
    np.testing.assert_allclose(found.scores["score"], case.wanted, atol=1e-5)


def test_a_user_that_candidates_share_is_shared_by_all_tables(
    server: RunningServer, trained: Trained
) -> None:
    items = np.arange(6)
    inputs = {"age": np.ones((1, 1), np.float32), "user": np.array([[17]]), "item": items}
    users = torch.full((6,), 17)
    wanted = trained.scores(users, torch.from_numpy(items), [[]] * 6, torch.ones(6, 1))
    np.testing.assert_allclose(infer(server, inputs), wanted.numpy(), atol=1e-5)


def test_a_required_feature_that_is_missing_is_refused_by_name(
    server: RunningServer, trained: Trained, case: Case
) -> None:
    """One of its tables requires it; the user may be left out."""
    words = "input 'item' is missing: the model requires it"
    inputs = {name: array for name, array in case.inputs.items() if name != "item"}
    with pytest.raises(grpc.RpcError) as refusal:
        infer(server, inputs)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in refusal.value.details()
    body = {"inputs": json_inputs(inputs)}
    status, answer, _ = ask(server, "POST", f"/v2/models/{SPEC.name}/infer", body)
    assert status == 400 and words in answer["error"]
    with Client(server.grpc_url) as client, pytest.raises(PredictError, match=words):
        client.predict(SPEC.name, candidates={name: inputs[name] for name in ("age", "user")})
    with pytest.raises(RequestError, match=words):
        trained.model.predict(inputs)
    del case.inputs["user"]
    assert infer(server, case.inputs).shape == case.wanted.shape
    empty = {"item": np.empty(0, np.int64), "item.lengths": np.zeros(len(case.wanted), np.int32)}
    assert infer(server, inputs | empty).shape == case.wanted.shape


def empty_bags(server: RunningServer) -> dict[str, float]:
    status, page, _ = ask(server, "GET", "/metrics")
    assert status == 200
    series = re.findall(
        r'^sharded_infer_empty_bags_total{feature="(.*)",model="neumf",version="1"} (.*)$',
        page.decode(),
        re.MULTILINE,
    )
    return {feature: float(count) for feature, count in series}


def test_empty_bags_are_counted_by_feature_over_all_workers(server: RunningServer) -> None:
    before = empty_bags(server)
    assert list(before) == ["user", "item", "genres"]
    inputs = {
        "age": np.ones((3, 1), np.float32),
        "item": np.array([1, 2, 3]),
        # The padding alone is as good as nothing.
        "genres": np.array([PADDING, 4]),
        "genres.lengths": np.array([1, 1, 0], np.int32),
    }
    for _ in range(8):
        # Each on a connection of its own, which any worker may take.
        infer(server, inputs)
    for _ in range(2):
        infer(server, inputs | {"user": np.array([[5]])})
    grown = {name: count - before[name] for name, count in empty_bags(server).items()}
    assert grown == {"user": 24.0, "item": 0.0, "genres": 20.0}


def test_each_input_is_described_once(server: RunningServer) -> None:
    with server.stub() as stub:
        asked = service_pb2.ModelMetadataRequest(name=SPEC.name)
        metadata = stub.ModelMetadata(asked)
        config = stub.ModelConfig(service_pb2.ModelConfigRequest(name=SPEC.name)).config
    assert [tensor.name for tensor in metadata.inputs] == ["age", "user", "item", "genres"]
    assert [(tensor.name, tensor.optional) for tensor in config.input] == [
        ("age", False),
        ("user", True),
        ("item", False),
        ("genres", True),
    ]
