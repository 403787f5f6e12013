"""Features of several tables: counted where they are empty, and described once."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tritonclient.grpc import service_pb2

from sharded_infer import ModelSpec, QuantizationSpec, TableSpec, publish
from sharded_infer.specs.model_spec import DenseSpec
from tests.support.raw_ids import Sum
from tests.support.server_pages import counted
from tests.support.servers import Arrays, RunningServer, infer_request, running_server

USERS, ITEMS, GENRES, PADDING = 23, 31, 7, 0
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("shared")
    weights = {table.name: torch.zeros(table.rows, table.dim) for table in SPEC.tables}
    publish(SPEC, weights, Sum(), folder / "models")
    with running_server(folder / "models", folder / "log", "--workers", 2) as running:
        yield running


def test_empty_bags_are_counted_by_feature_over_all_workers(server: RunningServer) -> None:
    inputs: Arrays = {
        "age": np.ones((3, 1), np.float32),
        "item": np.array([1, 2, 3]),
        # The padding alone is as good as nothing.
        "genres": np.array([PADDING, 4]),
        "genres.lengths": np.array([1, 1, 0], np.int32),
    }
    for asked in [inputs] * 8 + [{**inputs, "user": np.array([[5]])}] * 2:
        # Each on a connection of its own, which any worker may take.
        with server.stub() as stub:
            stub.ModelInfer(infer_request(asked, model=SPEC.name))
    for feature, count in {"user": 24, "item": 0, "genres": 20}.items():
        assert counted(server, "sharded_infer_empty_bags_total", feature=feature) == count


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
