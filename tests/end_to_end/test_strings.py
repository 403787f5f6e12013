"""Ids that are strings, in every form of a request to running servers."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from tests.support.raw_ids import publish_words
from tests.support.servers import TRANSPORTS, RunningServer, running_server


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of a model, one of whose two inputs takes strings."""
    return publish_words(tmp_path_factory.mktemp("words"), "word", "plain").parents[1]


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(
    request: pytest.FixtureRequest, words: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    options = ("--transport", request.param, "--shared-memory")
    with running_server(words, folder / "log", *options) as running:
        yield running


SAID = {"raw_ids.word": "INT64, BYTES", "string_hash.word": "xxh3_64", "string_hash_seed.word": "7"}


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
    url = server.metrics_url.removesuffix("/metrics") + "/v2/models/words/config"
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own server
        shown = json.load(answer)["parameters"]
    assert {name: value["string_value"] for name, value in shown.items()} == told
