"""Ids that are strings, in every form of a request to running servers."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from tritonclient.grpc import service_pb2

from serving.protocol.wire_strings import packed_strings
from sharded_infer.client import Bags, Client, PredictError, hash_strings
from tests.support.raw_ids import WORD_SEED, WORDS, publish_words
from tests.support.server_pages import fetch
from tests.support.servers import Command, RunningServer, json_inputs, running_server, scores_of


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of a model, one of whose two inputs takes strings."""
    return publish_words(tmp_path_factory.mktemp("words"), "word", "plain").parents[1]


@pytest.fixture(scope="module")
def server(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(words, log, "--shared-memory") as running:
        yield running


SAID = {
    "products": "fp32",
    "raw_ids.word": "INT64, BYTES",
    "string_hash.word": "xxh3_64",
    "string_hash_seed.word": "7",
}


def test_the_configuration_says_which_inputs_take_raw_ids_and_strings(
    server: RunningServer,
) -> None:
    with server.stub() as stub:
        config = stub.ModelConfig(service_pb2.ModelConfigRequest(name="words"), timeout=60).config
        metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="words"), timeout=60)
    told = {name: value.string_value for name, value in config.parameters.items()}
    assert {name: told[name] for name in told if not name.startswith("version.")} == SAID
    # What most clients send.
    assert {one.name: one.datatype for one in metadata.inputs}["word"] == "INT64"
    shown = json.loads(fetch(f"{server.http_url}/v2/models/words/config")[1])["parameters"]
    assert {name: value["string_value"] for name, value in shown.items()} == told


ASKED = [*WORDS, "not known"]
# The mean of both inputs' columns, of which "plain" has zeros.
WANTED = [0.5, 1.0, 1.5, 2.0, 0.0]
AGE = np.zeros((5, 1), np.float32)


def test_strings_come_raw_or_typed_over_grpc_and_as_json_or_binary_over_http(
    server: RunningServer,
) -> None:
    encoded = [word.encode() for word in ASKED]
    raw = service_pb2.ModelInferRequest(model_name="words")
    raw.inputs.add(name="word", datatype="BYTES", shape=[5])
    raw.inputs.add(name="age", datatype="FP32", shape=[5, 1])
    raw.raw_input_contents.extend([packed_strings(encoded), AGE.tobytes()])
    typed = service_pb2.ModelInferRequest(model_name="words")
    word = typed.inputs.add(name="word", datatype="BYTES", shape=[5])
    word.contents.bytes_contents.extend(encoded)
    age = typed.inputs.add(name="age", datatype="FP32", shape=[5, 1])
    age.contents.fp32_contents.extend([0.0] * 5)
    wrong = service_pb2.ModelInferRequest(model_name="words")
    wrong.inputs.add(name="plain", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"")
    with server.stub() as stub:
        for message in (raw, typed):
            assert scores_of(stub.ModelInfer(message, timeout=60))["score"].tolist() == WANTED
        with pytest.raises(grpc.RpcError, match="datatype 'BYTES', expected INT64 or INT32"):
            stub.ModelInfer(wrong, timeout=60)
    parts = {"word": packed_strings(encoded), "age": AGE.tobytes()}
    described = [
        {"name": "word", "datatype": "BYTES", "shape": [5, 1]},
        {"name": "age", "datatype": "FP32", "shape": [5, 1]},
    ]
    for one in described:
        one["parameters"] = {"binary_data_size": len(parts[str(one["name"])])}
    head = json.dumps({"inputs": described}).encode()
    assert http_scores(server, head + b"".join(parts.values()), len(head)) == WANTED
    assert http_scores(server, json_body([[one] for one in ASKED])) == WANTED
    for data, said in (([1] * 5, "expected strings"), (["\ud800"] * 5, "no text")):
        status, refusal = http_answer(server, json_body(data))
        assert status == 400 and said in refusal


def json_body(words: list[Any], **parameters: object) -> bytes:
    word = {"name": "word", "datatype": "BYTES", "shape": [5, 1], "data": words}
    inputs = [*json_inputs({"age": AGE}), word]
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def http_answer(server: RunningServer, body: bytes, head: int | None = None) -> tuple[int, str]:
    """The answer to a body, of which the first bytes are JSON."""
    headers = {} if head is None else {"Inference-Header-Content-Length": str(head)}
    return fetch(f"{server.http_url}/v2/models/words/infer", body, headers)[:2]


def http_scores(server: RunningServer, body: bytes, head: int | None = None) -> list[float]:
    status, text = http_answer(server, body, head)
    assert status == 200, text
    scores: list[float] = json.loads(text)["outputs"][0]["data"]
    return scores


def test_rest_says_how_many_ids_are_unknown_where_that_is_asked_for(server: RunningServer) -> None:
    def answer(**parameters: object) -> tuple[int, str]:
        return http_answer(server, json_body([[word] for word in ASKED], **parameters))

    for more in ({}, {"unknown_ids": False}):
        assert "parameters" not in json.loads(answer(**more)[1])
    assert json.loads(answer(unknown_ids=True)[1])["parameters"] == {"unknown_ids.word": 1}
    status, words = answer(unknown_ids=1)
    assert status == 400 and "parameter 'unknown_ids': expected bool_param" in words


def test_our_client_sends_strings(server: RunningServer) -> None:
    with Client(server.grpc_url) as client:

        def scores(word: object, **more: object) -> list[float]:
            candidates = {"word": word, "age": AGE, **more}
            return client.predict("words", candidates=candidates).scores["score"].tolist()

        assert scores(ASKED) == WANTED
        assert scores([[word.encode()] for word in ASKED]) == WANTED
        assert scores(hash_strings(ASKED, "xxh3_64", WORD_SEED)) == WANTED
        assert scores(Bags(["a", "größe"], [2, 0, 0, 0, 0])) == [2.5, 0, 0, 0, 0]
        frame = pd.DataFrame({"word": ASKED, "age": AGE[:, 0]})
        assert client.predict("words", candidates=frame).scores["score"].tolist() == WANTED
        user = client.predict("words", user={"word": "größe"}, candidates={"age": AGE})
        assert user.scores["score"].tolist() == [1.5] * 5
        told = client.predict(
            "words", candidates={"word": ASKED, "age": AGE}, report_unknown_ids=True
        )
        assert told.unknown_ids == {"word": 1}
        with pytest.raises(PredictError, match="feature 'plain': strings came; expected ids that"):
            scores(ASKED, plain=ASKED)


def test_strings_may_lie_in_shared_memory(server: RunningServer) -> None:
    content = packed_strings([word.encode() for word in ASKED])
    name = f"sharded-infer-test-{uuid.uuid4().hex}"
    path = Path("/dev/shm", name)  # noqa: S108 - a shared memory object
    path.write_bytes(content + b"more")
    message = service_pb2.ModelInferRequest(model_name="words")
    word = message.inputs.add(name="word", datatype="BYTES", shape=[5])
    word.parameters["shared_memory_region"].string_param = name
    size = word.parameters["shared_memory_byte_size"]
    size.int64_param = len(content)
    message.inputs.add(name="age", datatype="FP32", shape=[5, 1])
    message.raw_input_contents.append(AGE.tobytes())
    region = service_pb2.SystemSharedMemoryRegisterRequest(
        name=name, key=f"/{name}", byte_size=len(content) + 4
    )
    try:
        with server.stub() as stub:
            stub.SystemSharedMemoryRegister(region, timeout=60)
            assert scores_of(stub.ModelInfer(message, timeout=60))["score"].tolist() == WANTED
            for other, words in (
                (4, "followed by 4 bytes"),
                (-1, "is cut"),
                (-len(content), "20 bytes at least"),
            ):
                size.int64_param = len(content) + other
                with pytest.raises(grpc.RpcError, match=f"input 'word': .*{words}") as refused:
                    stub.ModelInfer(message, timeout=60)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    finally:
        path.unlink()


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet"])
def test_the_command_line_takes_strings(
    words: Path, server: RunningServer, sharded_infer: Command, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"samples.{suffix}"
    # Of "1e5" a reader of numbers would make one.
    samples = [["größe", "a"], [], ["1e5"], ["a"]]
    if suffix == "jsonl":
        lines = [json.dumps({"age": 0, "word": bag, "plain": 1}) for bag in samples]
        file.write_text("\n".join(lines))
    elif suffix == "parquet":
        frame = {"age": np.zeros(4, np.float32), "word": samples, "plain": np.ones(4, np.int64)}
        pd.DataFrame(frame).to_parquet(file)
    else:
        between = {"csv": ",", "tsv": "\t"}[suffix]
        rows = [["age", "word", "plain"], *(["0", "|".join(bag), "1"] for bag in samples)]
        file.write_text("\n".join(between.join(row) for row in rows))
    wanted = [2.5, 0.0, 0.0, 1.0]
    for place in (("--address", server.grpc_url), ("--repository", words)):
        found = sharded_infer("predict", file, *place, "--json").json()
        assert found["scores"]["score"] == wanted
    if suffix == "jsonl":
        file.write_text(json.dumps({"age": 0, "plain": "a"}))
        for place in (("--address", server.grpc_url), ("--repository", words)):
            sharded_infer("predict", file, *place).refused("'plain': expected an id or a list")
