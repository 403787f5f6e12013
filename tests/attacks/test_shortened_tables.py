"""Table files that become shorter while they are served: named, no made-up score, others served."""

import os
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.attacks.conftest import OTHER
from tests.attacks.test_unloadable_models import is_ready, reasons, table_of, unavailable
from tests.support.server_pages import counted, readiness
from tests.support.server_processes import children_of
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.waiting import until

POLL = ("--poll-seconds", 0.05)


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
    """Whether it holds on many connections, and thus in every worker.

    They follow the repository by themselves, one after another on a busy machine.
    """
    return all(condition() for _ in range(8 * server.ready["workers"]))


def score(server: RunningServer, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with server.stub() as stub:
        found = scores_of(stub.ModelInfer(infer_request(inputs), timeout=10))
        return np.asarray(found["score"])


def test_the_version_before_takes_over_from_one_whose_table_is_cut(
    ranker: Ranker, repository: Path, tmp_path: Path
) -> None:
    home = repository / MODEL
    coming = Path(shutil.copytree(home / "1", home / ".coming"))
    manifest = coming / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2', 1))
    coming.rename(home / "2")
    inputs = good_inputs(4)
    with running_server(repository, tmp_path / "log", *POLL, "--workers", 2) as server:
        os.truncate(sorted((home / "2" / "tables").iterdir())[0], 0)
        until(lambda: each(server, lambda: served_version(server) == "1"), "version 1 answers")
        np.testing.assert_allclose(
            score(server, inputs), ranker.predict(inputs)["score"], atol=1e-4
        )
        until(lambda: readiness(server) == (200, "ready"), "nothing is missing")


def served_version(server: RunningServer) -> str:
    with server.stub() as stub:
        try:
            return str(stub.ModelInfer(infer_request(good_inputs(1)), timeout=10).model_version)
        except grpc.RpcError:
            return ""


def test_huge_pages_hold_a_copy_that_a_cut_file_does_not_touch(
    ranker: Ranker, repository: Path, tmp_path: Path
) -> None:
    inputs = good_inputs(4)
    expected = ranker.predict(inputs)["score"]
    with running_server(repository, tmp_path / "log", "--memory", "huge") as server:
        os.truncate(table_of(repository, MODEL), 0)
        for _ in range(3):
            np.testing.assert_allclose(score(server, inputs), expected, atol=1e-4)
        with urllib.request.urlopen(server.metrics_url, timeout=10) as page:  # noqa: S310 - ours
            assert page.status == 200
