"""Requests with raw ids to running servers: both transports, REST, the client, several machines."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tritonclient.grpc import service_pb2

from kernels.ids.id_hash import IdHash, hash_ids
from serving.protocol.wire_strings import packed_strings
from sharded_infer.client import Bags, Client
from sharded_infer.engines.model import Model, open_model
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import export_tower
from tests.support.fronts import hosts_file
from tests.support.raw_ids import (
    SPEC,
    WORDS,
    Arrays,
    RawModel,
    Sum,
    publish_raw,
    publish_words,
    raw_request,
)
from tests.support.servers import (
    Command,
    RunningServer,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.shard_host_processes import running_shard_host

HOSTS = 2
REQUESTS = [(1, ()), (2, ()), (17, ()), (9, ("user_id", "shop")), (5, tuple(SPEC.sparse_inputs))]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> RawModel:
    folder = tmp_path_factory.mktemp("raw")
    rank = '[[devices]]\ncard = "cpu"\nhost = {}\nmemory = "1.2KB"\n'
    topology = folder / "hosts.toml"
    topology.write_text("".join(rank.format(host) for host in range(HOSTS)))
    return publish_raw(folder, topologies=(str(topology), "cpu:1"))


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


def check(server: RunningServer, published: RawModel, plain: Model) -> None:
    with server.stub() as stub:
        for seed, (batch, shared) in enumerate(REQUESTS):
            raw, rows = raw_request(published, batch, seed, shared=shared, weighted=("bought",))
            wanted = plain.predict(rows)["score"]
            for _ in range(3):
                message = infer_request(raw, model="raw")
                scores = scores_of(stub.ModelInfer(message, timeout=60))["score"]
                np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-5)


def test_raw_ids_are_scored_as_the_rows_that_a_dict_gives(
    server: RunningServer, published: RawModel, plain: Model
) -> None:
    check(server, published, plain)


def test_requests_at_once_are_merged_after_their_ids_are_mapped(
    server: RunningServer, published: RawModel, plain: Model
) -> None:
    asked = [raw_request(published, 3, seed) for seed in range(60)]
    with server.stub() as stub:
        calls = [
            stub.ModelInfer.future(infer_request(raw, model="raw"), timeout=60) for raw, _ in asked
        ]
        for call, (_, rows) in zip(calls, asked, strict=True):
            wanted = plain.predict(rows)["score"]
            np.testing.assert_allclose(scores_of(call.result())["score"], wanted, atol=1e-5)


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
    kinds = {"int64": "INT64", "float32": "FP32"}
    body = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": kinds[array.dtype.name],
                "data": array.ravel().tolist(),
            }
            for name, array in raw.items()
        ]
    }
    url = server.metrics_url.removesuffix("/metrics") + "/v2/models/raw/infer"
    answer: Any = json.load(urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60))  # noqa: S310 - our own server
    scores = answer["outputs"][0]["data"]
    np.testing.assert_allclose(scores, plain.predict(rows)["score"], atol=1e-5)


def test_the_client_sends_raw_ids(server: RunningServer, published: RawModel, plain: Model) -> None:
    raw, rows = raw_request(published, 6, 7)
    candidates = {name: Bags(raw[name], raw[f"{name}.lengths"]) for name in SPEC.sparse_inputs}
    with Client(server.grpc_url) as client:
        found = client.predict("raw", candidates={**candidates, "age": raw["age"]})
    np.testing.assert_allclose(found.scores["score"], plain.predict(rows)["score"], atol=1e-5)


def test_a_front_maps_ids_and_asks_shard_hosts_for_rows(
    published: RawModel, plain: Model, tmp_path: Path
) -> None:
    repository = published.path.parents[1]
    with ExitStack() as stack:
        hosts = {
            number: stack.enter_context(
                running_shard_host(repository, number, tmp_path / f"host{number}")
            )
            for number in range(HOSTS)
        }
        named = ("--shard-hosts", hosts_file(tmp_path, hosts))
        front = stack.enter_context(running_server(repository, tmp_path / "front", *named))
        check(front, published, plain)


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


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_words(tmp_path_factory.mktemp("words"), "word", "plain")


def test_strings_are_hashed_by_the_server(words: Path, tmp_path: Path) -> None:
    asked = [*WORDS, "not known"]
    age = {"name": "age", "datatype": "FP32", "shape": [5, 1], "data": [0.0] * 5}
    wanted = [0.5, 1.0, 1.5, 2.0, 0.0]
    tensor = service_pb2.ModelInferRequest.InferInputTensor
    encoded = [word.encode() for word in asked]
    raw = service_pb2.ModelInferRequest(
        model_name="words",
        inputs=[
            tensor(name="word", datatype="BYTES", shape=[5]),
            tensor(name="age", datatype="FP32", shape=[5, 1]),
        ],
        raw_input_contents=[packed_strings(encoded), bytes(20)],
    )
    typed = service_pb2.ModelInferRequest(model_name="words")
    typed.inputs.add(name="word", datatype="BYTES", shape=[5]).contents.bytes_contents.extend(
        encoded
    )
    typed.inputs.add(name="age", datatype="FP32", shape=[5, 1]).contents.fp32_contents.extend(
        [0.0] * 5
    )
    wrong = service_pb2.ModelInferRequest(model_name="words")
    wrong.inputs.add(name="plain", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"")
    repository = words.parents[1]
    with (
        running_server(repository, tmp_path / "log") as server,
        server.stub() as stub,
    ):
        for message in (raw, typed):
            assert scores_of(stub.ModelInfer(message, timeout=60))["score"].tolist() == wanted
        with pytest.raises(grpc.RpcError, match="datatype 'BYTES', expected INT64 or INT32"):
            stub.ModelInfer(wrong, timeout=60)
        url = server.metrics_url.removesuffix("/metrics") + "/v2/models/words/infer"
        word = {"name": "word", "datatype": "BYTES", "shape": [5, 1]}
        body = json.dumps({"inputs": [age, {**word, "data": [[one] for one in asked]}]}).encode()
        with urllib.request.urlopen(url, body, timeout=60) as answer:  # noqa: S310 - our own server
            assert json.load(answer)["outputs"][0]["data"] == wanted
        parts = [packed_strings(encoded), bytes(20)]
        described = [word, {name: age[name] for name in ("name", "datatype", "shape")}]
        for one, part in zip(described, parts, strict=True):
            one["parameters"] = {"binary_data_size": len(part)}
        head = json.dumps({"inputs": described}).encode()
        binary = urllib.request.Request(  # noqa: S310 - our own server
            url, head + b"".join(parts), {"Inference-Header-Content-Length": str(len(head))}
        )
        with urllib.request.urlopen(binary, timeout=60) as answer:  # noqa: S310 - our own server
            assert json.load(answer)["outputs"][0]["data"] == wanted
        del word["parameters"]
        for data, said in (([1] * 5, "expected strings"), (["\ud800"] * 5, "no text")):
            body = json.dumps({"inputs": [age, {**word, "data": data}]}).encode()
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url, body, timeout=60)  # noqa: S310 - our own server
            assert refused.value.code == 400 and said in refused.value.read().decode()
