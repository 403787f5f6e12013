"""Servers some of whose models cannot be loaded: they serve the others, and say which."""

import json
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from tests.attacks.conftest import OTHER
from tests.support.server_pages import counted, readiness
from tests.support.servers import (
    MODEL,
    RunningServer,
    good_inputs,
    infer_request,
    run,
    running_server,
)
from tests.support.traffic import flip_bit
from tests.support.waiting import until

POLL = ("--poll-seconds", 0.05)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# What damage does to the other model's folder, and what undoes it.
Damage = Callable[[Path], Callable[[], object]]


def table_of(home: Path, model: str = OTHER) -> Path:
    return sorted((home / model / "1" / "tables").iterdir())[0]


def health_of(server: RunningServer, name: str) -> int:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status: int = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status
        return status


def is_ready(server: RunningServer, model: str) -> bool:
    with server.stub() as stub:
        asked = service_pb2.ModelReadyRequest(name=model)
        return bool(stub.ModelReady(asked, timeout=10).ready)


def unavailable(server: RunningServer, model: str) -> str:
    """What a request for a model that is not served is told."""
    with server.stub() as stub, pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(infer_request(good_inputs(1), model=model), timeout=10)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(raised.value.details())


def reasons(server: RunningServer, model: str) -> dict[str, tuple[str, str]]:
    with server.stub() as stub:
        index = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=10)
        return {one.version: (one.state, one.reason) for one in index.models if one.name == model}


def missing(server: RunningServer, model: str) -> float:
    return counted(server, "sharded_infer_model_missing", model=model)


def cut(home: Path) -> Callable[[], object]:
    table = table_of(home)
    content = table.read_bytes()
    table.write_bytes(content[:-1])
    return lambda: table.write_bytes(content)


def labels_in_the_way(home: Path) -> Callable[[], object]:
    folder = home / OTHER / "labels.json"
    folder.mkdir()
    return folder.rmdir


@pytest.mark.parametrize(("damage", "workers"), [(cut, 1), (labels_in_the_way, 2)])
def test_a_server_serves_what_loads_names_what_does_not_and_takes_it_when_it_is_mended(
    damage: Damage, workers: int, repository: Path, tmp_path: Path
) -> None:
    mend = damage(repository)
    log = tmp_path / "log"
    with running_server(repository, log, *POLL, "--workers", workers) as server:
        assert [one["name"] for one in server.ready["models"]] == [MODEL]
        assert set(server.ready["missing"]) == {OTHER}
        code, words = readiness(server)
        assert code == 200 and words.startswith("ready\nnot served: small ("), words
        assert (health_of(server, ""), health_of(server, MODEL)) == (SERVING, SERVING)
        assert health_of(server, OTHER) == NOT_SERVING
        assert is_ready(server, MODEL) and not is_ready(server, OTHER)
        ((state, reason),) = reasons(server, OTHER).values()
        assert state == "UNAVAILABLE" and str(repository / OTHER) in reason
        assert counted(server, "sharded_infer_worker_restarts_total") == 0
        assert str(repository / OTHER) in unavailable(server, OTHER)
        assert [missing(server, model) for model in (MODEL, OTHER)] == [0, 1]
        with server.stub() as stub:
            assert stub.ModelInfer(infer_request(good_inputs(2)), timeout=10).model_name == MODEL
        assert 'ERROR the server starts without a model (model="small" reason=' in log.read_text()
        mend()
        until(lambda: is_ready(server, OTHER), "the mended model")
        until(lambda: readiness(server) == (200, "ready"), "nothing is missing")
        until(lambda: health_of(server, OTHER) == SERVING, "its health")
        until(lambda: missing(server, OTHER) == 0, "the metric")


def test_strict_servers_end_where_one_model_cannot_be_loaded(repository: Path) -> None:
    cut(repository)
    ports = ("--port", 0, "--http-port", 0, "--json")
    done = run("serve", "-r", repository, *ports, "--strict")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {table_of(repository)}: too short"), done.stderr


def test_a_server_that_can_load_nothing_ends_with_the_reason_of_each_model(
    repository: Path,
) -> None:
    cut(repository)
    flip_bit(table_of(repository, MODEL))
    ports = ("--port", 0, "--http-port", 0, "--json", "--workers", 2)
    done = run("serve", "-r", repository, *ports)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: none of 2 models can be served: "), done.stderr
    assert all(str(table_of(repository, model)) in last for model in (MODEL, OTHER)), last
    assert "Traceback" not in done.stderr


def test_a_named_model_that_is_not_published_yet_is_served_when_it_is(
    repository: Path, tmp_path: Path
) -> None:
    aside = (repository / OTHER).rename(tmp_path / "aside")
    names = ("-m", MODEL, "-m", OTHER)
    with running_server(repository, tmp_path / "log", *POLL, *names) as server:
        assert f"no model '{OTHER}'" in server.ready["missing"][OTHER]
        assert reasons(server, OTHER)[""][0] == "UNAVAILABLE"
        assert f"no model '{OTHER}'" in unavailable(server, OTHER)
        aside.rename(repository / OTHER)
        until(lambda: is_ready(server, OTHER), "the model that came")


def test_a_label_on_an_unreadable_version_leaves_out_its_model_alone(
    repository: Path, tmp_path: Path
) -> None:
    for model in (MODEL, OTHER):
        (repository / model / "labels.json").write_text(json.dumps({"stable": 1}))
    mend = cut(repository)
    follow = ("--follow", "labels:stable")
    with running_server(repository, tmp_path / "log", *POLL, *follow) as server:
        assert set(server.ready["missing"]) == {OTHER}
        assert is_ready(server, MODEL) and "too short" in unavailable(server, OTHER)
        mend()
        until(lambda: is_ready(server, OTHER), "the mended version")


def test_models_that_clients_load_do_not_stop_the_start_either(
    repository: Path, tmp_path: Path
) -> None:
    mend = cut(repository)
    explicit = ("--model-control", "explicit", "--load-model", "*")
    with running_server(repository, tmp_path / "log", *POLL, *explicit) as server:
        assert set(server.ready["missing"]) == {OTHER}
        assert is_ready(server, MODEL) and not is_ready(server, OTHER)
        mend()
        with server.stub() as stub:
            asked = service_pb2.RepositoryModelLoadRequest(model_name=OTHER)
            stub.RepositoryModelLoad(asked, timeout=60)
        assert is_ready(server, OTHER)
        until(lambda: readiness(server) == (200, "ready"), "nothing is missing")
