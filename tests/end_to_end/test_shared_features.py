"""Features of several tables: required, counted where they are empty, and described once."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tritonclient.grpc import service_pb2

from sharded_infer import Model, ModelSpec, QuantizationSpec, TableSpec, open_model, publish
from sharded_infer.client import Client, PredictError
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


def infer(server: RunningServer, inputs: Arrays) -> NDArray[np.float32]:
    with server.stub() as stub:
        response = stub.ModelInfer(infer_request(inputs, model=SPEC.name))
    return np.frombuffer(response.raw_output_contents[0], np.float32)


def test_a_required_feature_that_is_missing_is_refused_by_name(
    server: RunningServer, trained: Trained
) -> None:
    """One of its tables requires it; the user may be left out."""
    words = "input 'item' is missing: the model requires it"
    inputs: Arrays = {"age": np.ones((2, 1), np.float32), "user": np.array([3, 4])}
    with pytest.raises(grpc.RpcError) as refusal:
        infer(server, inputs)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in refusal.value.details()
    body = {"inputs": json_inputs(inputs)}
    status, answer, _ = ask(server, "POST", f"/v2/models/{SPEC.name}/infer", body)
    assert status == 400 and words in answer["error"]
    with Client(server.grpc_url) as client, pytest.raises(PredictError, match=words):
        client.predict(SPEC.name, candidates=dict(inputs))
    with pytest.raises(RequestError, match=words):
        trained.model.predict(inputs)
    empty = {"item": np.empty(0, np.int64), "item.lengths": np.zeros(2, np.int32)}
    assert infer(server, {**inputs, **empty}).shape == (2,)
    assert infer(server, {"age": inputs["age"], "item": np.array([5, 6])}).shape == (2,)


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
