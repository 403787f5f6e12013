"""Raw ids, known and unknown, as clients and operators of running servers hear of them."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kernels.ids.id_hash import IdHash, hash_ids
from sharded_infer.client import AsyncClient, Bags, Client, Prediction
from sharded_infer.engines.model import Model, open_model
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import export_tower
from tests.support.raw_ids import (
    SPEC,
    Arrays,
    RawModel,
    Sum,
    publish_raw,
    raw_request,
)
from tests.support.server_pages import counted
from tests.support.servers import (
    Command,
    RunningServer,
    infer_request,
    json_inputs,
    running_server,
    scores_of,
)

REQUESTS = [(1, ()), (2, ()), (17, ()), (9, ("user_id", "shop")), (5, tuple(SPEC.sparse_inputs))]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> RawModel:
    return publish_raw(tmp_path_factory.mktemp("raw"), topologies=("cpu:1",))


@pytest.fixture(scope="module")
def plain(published: RawModel) -> Model:
    return open_model(published.plain)


@pytest.fixture(scope="module")
def server(
    published: RawModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    options = ("--workers", 2)
    with running_server(published.path.parents[1], folder / "log", *options) as running:
        yield running


def test_raw_ids_are_scored_as_the_rows_that_a_dict_gives(
    server: RunningServer, published: RawModel, plain: Model
) -> None:
    with server.stub() as stub:
        for seed, (batch, shared) in enumerate(REQUESTS):
            raw, rows = raw_request(published, batch, seed, shared=shared, weighted=("bought",))
            wanted = plain.predict(rows)["score"]
            for _ in range(3):
                message = infer_request(raw, model="raw")
                scores = scores_of(stub.ModelInfer(message, timeout=60))["score"]
                np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-5)


def test_an_unknown_id_that_is_refused_fails_its_request_alone(
    server: RunningServer, published: RawModel, plain: Model
) -> None:
    raw, rows = raw_request(published, 2, 1)
    wrong: Arrays = {**raw, "user_id": np.array([4]), "user_id.lengths": np.array([0, 1])}
    with server.stub() as stub:
        calls = [
            stub.ModelInfer.future(infer_request(one, model="raw"), timeout=60)
            for one in [raw, wrong] * 20
        ]
        for number, call in enumerate(calls):
            if number % 2:
                error = call.exception()
                assert isinstance(error, grpc.RpcError)
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                words = "feature 'user_id', sample 1: id 4 is not in the id map of table 'user'"
                assert words in error.details()
            else:
                found = scores_of(call.result())["score"]
                np.testing.assert_allclose(found, plain.predict(rows)["score"], atol=1e-5)


def test_rest_takes_64_bit_ids_as_json_numbers(
    server: RunningServer, published: RawModel, plain: Model
) -> None:
    raw, rows = raw_request(published, 4, 3)
    body = {"inputs": json_inputs(raw)}
    url = f"{server.http_url}/v2/models/raw/infer"
    answer: Any = json.load(urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60))  # noqa: S310 - our own server
    scores = answer["outputs"][0]["data"]
    np.testing.assert_allclose(scores, plain.predict(rows)["score"], atol=1e-5)


def test_the_client_sends_raw_ids(server: RunningServer, published: RawModel, plain: Model) -> None:
    raw, rows = raw_request(published, 6, 7)
    candidates = {name: Bags(raw[name], raw[f"{name}.lengths"]) for name in SPEC.sparse_inputs}
    with Client(server.grpc_url) as client:
        found = client.predict("raw", candidates={**candidates, "age": raw["age"]})
    np.testing.assert_allclose(found.scores["score"], plain.predict(rows)["score"], atol=1e-5)


def test_publish_reads_the_file_that_the_spec_names(sharded_infer: Command, tmp_path: Path) -> None:
    weight = torch.arange(6.0).view(3, 2)
    save_file({"item": weight}, tmp_path / "weights.safetensors")
    np.save(tmp_path / "ids.npy", np.array([[2**62, 1], [-9, 0]]))
    tower = export_tower(
        Sum(), dense={"age": 1}, embedding_width=2, outputs=("score",), precision=Precision.FP32
    )
    write_program(tower, tmp_path / "tower.pt2")
    spec = replace(
        SPEC,
        name="files",
        tables=(TableSpec("item", 3, 2, id_map=IdMapSpec(SharedRows((2,)), file="ids.npy")),),
        tower=TowerSpec(program="tower.pt2"),
    )
    (tmp_path / "model.toml").write_text(spec.to_toml())
    repository = ("--repository", tmp_path / "repository")
    made = sharded_infer(
        *("publish", "--spec", tmp_path / "model.toml"),
        *("--weights", tmp_path / "weights.safetensors"),
        *(*repository, "--json"),
    ).json()
    model = open_model(made["path"])
    assert model.spec.tables[0].id_map == IdMapSpec(SharedRows((2,)))
    asked = {"item": np.array([-9, 2**62, 4]), "age": np.zeros((3, 1), np.float32)}
    assert model.predict(asked)["score"].tolist() == [0.5, 2.5, 4.5]
    shown = sharded_infer("inspect", *repository)
    assert "raw ids, id maps of item 16." in shown.out
    assert " kB (an unknown id reads row 2)" in shown.out


def test_hashed_ids_read_the_rows_of_their_hashes(tmp_path: Path) -> None:
    table = TableSpec("item", 1000, 1, id_map=IdMapSpec(hashed="xxh3_64", hash_seed=3))
    spec = replace(SPEC, name="hashed", tables=(table,))
    weights = {"item": torch.arange(1000.0)[:, None]}
    publish(spec, weights, Sum(), tmp_path / "models")
    ids = np.array([0, -1, 2**63 - 1, -(2**63), 77])
    wanted = hash_ids(IdHash.XXH3_64, ids, 3) % np.uint64(1000)
    message = infer_request({"item": ids, "age": np.zeros((5, 1), np.float32)}, model="hashed")
    with (
        running_server(tmp_path / "models", tmp_path / "log") as server,
        server.stub() as stub,
    ):
        assert scores_of(stub.ModelInfer(message, timeout=60))["score"].tolist() == wanted.tolist()


# ---------------------------------------------------------------- unknown ids

# Of `item` unknown ids leave their bags, of `shop` and `ad` they read rows. Two know "shop".
UNKNOWN = {"item": 2, "shop": 3, "ad": 4}


def asked(published: RawModel) -> Arrays:
    """Two samples of which `UNKNOWN` ids are in no map."""
    known = {name: [*entries] for name, entries in published.maps.items()}
    # What "shop" knows, "ad" does not, unless both have it.
    shops = [raw for raw in known["shop"] if raw not in published.maps["ad"]]
    return {
        "age": np.zeros((2, 1), np.float32),
        "user_id": np.array(known["user"][:2]),
        "clicked": np.array([[known["item"][0], 77, 78], known["item"][1:4]]),
        "bought": np.array([known["item"][4:6]] * 2),
        "shop": np.array([[shops[0], 77], [78, 79]]),
        "ad": np.array(known["ad"][:2]),
    }


def by_table(server: RunningServer, family: str) -> dict[str, float]:
    """A family's count of each table with an id map."""
    name = f"sharded_infer_{family}_total"
    return {t.name: counted(server, name, model="raw", table=t.name) for t in SPEC.mapped_tables}


def test_unknown_ids_are_counted_by_table(server: RunningServer, published: RawModel) -> None:
    before = by_table(server, "ids_unknown"), by_table(server, "ids_mapped")
    message = infer_request(asked(published), model="raw")
    with server.stub() as stub:
        for _ in range(20):
            stub.ModelInfer(message, timeout=60)
    unknown, mapped = by_table(server, "ids_unknown"), by_table(server, "ids_mapped")
    assert {table: unknown[table] - before[0][table] for table in unknown} == {
        "user": 0,
        **{table: 20 * count for table, count in UNKNOWN.items()},
    }
    wanted = {"user": 40, "item": 200, "shop": 80, "ad": 120}
    assert {table: mapped[table] - before[1][table] for table in mapped} == wanted


def parameters(response: Any) -> dict[str, int]:
    assert {value.WhichOneof("parameter_choice") for value in response.parameters.values()} <= {
        "int64_param"
    }
    return {name: value.int64_param for name, value in response.parameters.items()}


SAID = {f"unknown_ids.{table}": count for table, count in UNKNOWN.items()}


def test_answers_say_how_many_ids_are_unknown_where_that_is_asked_for(
    server: RunningServer, published: RawModel
) -> None:
    message = infer_request(asked(published), model="raw")
    with server.stub() as stub:
        plain = stub.ModelInfer(message, timeout=60)
        assert not plain.parameters
        message.parameters["unknown_ids"].bool_param = True
        told = stub.ModelInfer(message, timeout=60)
        assert parameters(told) == SAID
        assert told.raw_output_contents == plain.raw_output_contents
        # Merged with other requests, each is told of its own ids.
        calls = [stub.ModelInfer.future(message, timeout=60) for _ in range(30)]
        assert all(parameters(call.result()) == SAID for call in calls)
        (answer,) = stub.ModelStreamInfer(iter([message]), timeout=60)
        found = dict(answer.infer_response.parameters)
        assert found.pop("triton_final_response").bool_param
        assert {name: value.int64_param for name, value in found.items()} == SAID


@pytest.mark.parametrize("binary", [False, True])
def test_rest_says_how_many_ids_are_unknown(
    server: RunningServer, published: RawModel, binary: bool
) -> None:
    inputs, contents = json_inputs(asked(published)), b""
    if binary:
        for array, described in zip(asked(published).values(), inputs, strict=True):
            del described["data"]
            described["parameters"] = {"binary_data_size": array.nbytes}
            contents += array.tobytes()

    def answer(**parameters: object) -> Any:
        text = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
        url = f"{server.http_url}/v2/models/raw/infer"
        headers = {"Inference-Header-Content-Length": str(len(text))} if binary else {}
        request = urllib.request.Request(url, text + contents, headers)  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - our own
            return json.load(response)

    assert "parameters" not in answer()
    assert answer(unknown_ids=True)["parameters"] == SAID
    assert "parameters" not in answer(unknown_ids=False)
    with pytest.raises(urllib.error.HTTPError) as refused:
        answer(unknown_ids=1)
    assert refused.value.code == 400
    assert "parameter 'unknown_ids': expected bool_param" in refused.value.read().decode()


def test_our_client_asks_how_many_ids_are_unknown(
    server: RunningServer, published: RawModel
) -> None:
    candidates = asked(published)

    async def at_once() -> Prediction:
        async with AsyncClient(server.grpc_url) as client:
            return await client.predict("raw", candidates=candidates, report_unknown_ids=True)

    with Client(server.grpc_url) as client:
        assert client.predict("raw", candidates=candidates).unknown_ids == {}
        told = client.predict("raw", candidates=candidates, report_unknown_ids=True)
    assert told.unknown_ids == UNKNOWN
    assert asyncio.run(at_once()).unknown_ids == UNKNOWN
