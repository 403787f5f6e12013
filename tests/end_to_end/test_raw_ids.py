"""Raw ids, known and unknown, as clients and operators of running servers hear of them."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from sharded_infer.engines.model import Model, open_model
from tests.support.raw_ids import (
    SPEC,
    Arrays,
    RawModel,
    publish_raw,
    raw_request,
)
from tests.support.server_pages import counted
from tests.support.servers import (
    RunningServer,
    infer_request,
    json_inputs,
    running_server,
    scores_of,
)


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


def test_rest_says_how_many_ids_are_unknown(server: RunningServer, published: RawModel) -> None:
    inputs = json_inputs(asked(published))

    def answer(**parameters: object) -> Any:
        text = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
        url = f"{server.http_url}/v2/models/raw/infer"
        with urllib.request.urlopen(url, text, timeout=60) as response:  # noqa: S310 - our own
            return json.load(response)

    assert "parameters" not in answer()
    assert answer(unknown_ids=True)["parameters"] == SAID
    assert "parameters" not in answer(unknown_ids=False)
    with pytest.raises(urllib.error.HTTPError) as refused:
        answer(unknown_ids=1)
    assert refused.value.code == 400
    assert "parameter 'unknown_ids': expected bool_param" in refused.value.read().decode()
