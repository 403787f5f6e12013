"""Models that cannot be loaded, or not served any more: named, and the others are served."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from tests.attacks.conftest import OTHER
from tests.support.server_pages import counted, readiness
from tests.support.server_processes import children_of
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    run,
    running_server,
    scores_of,
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
    with server.stub() as stub, pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(infer_request(good_inputs(1), model=model), timeout=10)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(raised.value.details())


def reasons(server: RunningServer, model: str) -> dict[str, tuple[str, str]]:
    with server.stub() as stub:
        index = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=10)
        return {one.version: (one.state, one.reason) for one in index.models if one.name == model}


def cut(home: Path) -> Callable[[], object]:
    table = table_of(home)
    content = table.read_bytes()
    table.write_bytes(content[:-1])
    return lambda: table.write_bytes(content)


def labels_in_the_way(home: Path) -> Callable[[], object]:
    folder = home / OTHER / "labels.json"
    folder.mkdir()
    return folder.rmdir


def cut_below_a_label(home: Path) -> Callable[[], object]:
    for model in (MODEL, OTHER):
        (home / model / "labels.json").write_text(json.dumps({"stable": 1}))
    return cut(home)


@pytest.mark.parametrize(
    ("damage", "options"),
    [
        (cut, ()),
        (labels_in_the_way, ("--workers", 2)),
        (cut_below_a_label, ("--follow", "labels:stable")),
    ],
)
def test_a_server_serves_what_loads_names_what_does_not_and_takes_it_when_it_is_mended(
    damage: Damage, options: tuple[object, ...], repository: Path, tmp_path: Path
) -> None:
    mend = damage(repository)
    log = tmp_path / "log"
    with running_server(repository, log, *POLL, *options) as server:
        missing = partial(counted, server, "sharded_infer_model_missing")
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
        assert [missing(model=model) for model in (MODEL, OTHER)] == [0, 1]
        with server.stub() as stub:
            assert stub.ModelInfer(infer_request(good_inputs(2)), timeout=10).model_name == MODEL
        assert 'ERROR the server starts without a model (model="small" reason=' in log.read_text()
        mend()
        until(lambda: is_ready(server, OTHER), "the mended model")
        until(lambda: readiness(server) == (200, "ready"), "nothing is missing")
        until(lambda: health_of(server, OTHER) == SERVING, "its health")
        until(lambda: missing(model=OTHER) == 0, "the metric")


@pytest.mark.parametrize("options", [("--strict",), ("--workers", 2)], ids=["strict", "none loads"])
def test_a_server_that_loads_none_says_why(options: tuple[object, ...], repository: Path) -> None:
    cut(repository)
    is_strict = "--strict" in options
    if not is_strict:
        flip_bit(table_of(repository, MODEL))
    done = run("serve", "-r", repository, "--port", 0, "--http-port", 0, "--json", *options)
    assert (done.returncode, done.stdout) == (1, "") and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    if is_strict:
        assert last.startswith(f"error: {table_of(repository)}: too short"), done.stderr
    else:
        assert last.startswith("error: none of 2 models can be served: "), done.stderr
        assert all(str(table_of(repository, model)) in last for model in (MODEL, OTHER)), last


def test_a_named_model_is_served_once_it_is_published(repository: Path, tmp_path: Path) -> None:
    aside = (repository / OTHER).rename(tmp_path / "aside")
    names = ("-m", MODEL, "-m", OTHER)
    with running_server(repository, tmp_path / "log", *POLL, *names) as server:
        assert f"no model '{OTHER}'" in server.ready["missing"][OTHER]
        assert reasons(server, OTHER)[""][0] == "UNAVAILABLE"
        assert f"no model '{OTHER}'" in unavailable(server, OTHER)
        aside.rename(repository / OTHER)
        until(lambda: is_ready(server, OTHER), "the model that came")


def test_models_that_clients_load_stop_no_start_either(repository: Path, tmp_path: Path) -> None:
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


# Tables that are cut while they are served.


@pytest.mark.parametrize(("left", "workers"), [("nothing", 2), ("all but a byte", 1)])
def test_a_table_that_is_cut_takes_its_version_out_of_service_and_nothing_else(
    left: str, workers: int, ranker: Ranker, repository: Path, tmp_path: Path
) -> None:
    inputs = good_inputs(4)
    expected = ranker.predict(inputs)["score"]
    table = table_of(repository, MODEL)
    content = table.read_bytes()
    log = tmp_path / "log"
    with running_server(repository, log, *POLL, "--workers", workers) as server:
        processes = {server.process.pid, *children_of(server.process.pid)}
        np.testing.assert_allclose(score(server, inputs), expected, atol=1e-4)
        os.truncate(table, 0 if left == "nothing" else len(content) - 1)
        # Refused from the first request on, and the version goes.
        with pytest.raises(grpc.RpcError) as raised:
            score(server, inputs)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

        def is_out_of_service() -> bool:
            # It is tried once more, and says until then that it loads.
            state, reason = reasons(server, MODEL)["1"]
            said = not is_ready(server, MODEL) and str(table) in unavailable(server, MODEL)
            return said and state == "UNAVAILABLE" and str(table) in reason

        until(lambda: each(server, is_out_of_service), "the version is out of service")
        code, words = readiness(server)
        assert code == 200 and words.startswith(f"ready\nnot served: {MODEL} ("), words
        assert is_ready(server, OTHER)
        assert f"{table}: has become shorter" in log.read_text()
        # Nobody died.
        assert {server.process.pid, *children_of(server.process.pid)} == processes
        assert counted(server, "sharded_infer_worker_restarts_total") == 0
        # Whole again, it is served again.
        table.write_bytes(content)
        until(lambda: each(server, lambda: is_ready(server, MODEL)), "it is served again")
        np.testing.assert_allclose(score(server, inputs), expected, atol=1e-4)


def each(server: RunningServer, condition: Callable[[], bool]) -> bool:
    """Whether the condition holds on many connections, and thus in every worker."""
    return all(condition() for _ in range(8 * server.ready["workers"]))


def score(server: RunningServer, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with server.stub() as stub:
        found = scores_of(stub.ModelInfer(infer_request(inputs), timeout=10))
        return np.asarray(found["score"])


def test_the_version_before_takes_over(ranker: Ranker, repository: Path, tmp_path: Path) -> None:
    home = repository / MODEL
    coming = Path(shutil.copytree(home / "1", home / ".coming"))
    manifest = coming / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2', 1))
    coming.rename(home / "2")
    inputs = good_inputs(4)
    with running_server(repository, tmp_path / "log", *POLL, "--workers", 2) as server:
        os.truncate(sorted((home / "2" / "tables").iterdir())[0], 0)
        until(lambda: each(server, lambda: served_version(server) == "1"), "version 1 answers")
        expected = ranker.predict(inputs)["score"]
        np.testing.assert_allclose(score(server, inputs), expected, atol=1e-4)
        until(lambda: readiness(server) == (200, "ready"), "nothing is missing")


def served_version(server: RunningServer) -> str:
    with server.stub() as stub:
        call = stub.ModelInfer.future(infer_request(good_inputs(1)), timeout=10)
        return str(call.result().model_version) if call.code() is grpc.StatusCode.OK else ""


def test_a_cut_file_harms_no_huge_pages(ranker: Ranker, repository: Path, tmp_path: Path) -> None:
    inputs = good_inputs(4)
    expected = ranker.predict(inputs)["score"]
    with running_server(repository, tmp_path / "log", "--memory", "huge") as server:
        os.truncate(table_of(repository, MODEL), 0)
        for _ in range(3):
            np.testing.assert_allclose(score(server, inputs), expected, atol=1e-4)
        assert readiness(server) == (200, "ready")
