"""A delta comes to all workers at one moment: none answers from it before each of them could."""

import os
import signal
from pathlib import Path

import grpc
import numpy as np

from sharded_infer.publishing.deltas.delta_publication import publish_delta
from tests.support.marked_rows import MODEL, MarkedDeltas, marked_inputs, publish_marked
from tests.support.server_pages import samples
from tests.support.server_processes import workers_of
from tests.support.servers import RunningServer, infer_request, running_server, scores_of
from tests.support.waiting import until

# Each worker is stopped once.
WORKERS = 2
OPTIONS = ("--poll-seconds", 0.1, "--workers", WORKERS, "--heartbeat-seconds", 0)
# After which a request is taken to be at the worker that is stopped.
PATIENCE = 0.3
# Of the worker that is not stopped.
ANSWERS = 6


def served_versions(server: RunningServer) -> list[float]:
    """The default version of each worker."""
    page = samples(server.metrics_url)
    return [value for (name, _), value in page.items() if name == "sharded_infer_served_version"]


def test_no_worker_answers_from_a_delta_before_all_have_it(tmp_path: Path) -> None:
    repository, log = tmp_path / "repository", tmp_path / "log"
    publish_marked(repository, 1)
    deltas, inputs = MarkedDeltas(seed=5), marked_inputs(5, np.random.default_rng(0))

    def ask(server: RunningServer) -> int | None:
        """The version of a right answer; None where a stopped worker has the request."""
        with server.stub() as stub:
            try:
                answer = stub.ModelInfer(infer_request(inputs, model=MODEL), timeout=PATIENCE)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                return None
        version = int(answer.model_version)
        assert np.array_equal(scores_of(answer)["rows"], deltas.rows(inputs, version))
        return version

    with running_server(repository, log, *OPTIONS) as server:
        until(lambda: served_versions(server) == [1] * WORKERS, "all serve the base")
        workers: list[int] = []

        def all_are_found() -> bool:
            # The kernel's list of sockets may lack one while others come and go.
            workers[:] = workers_of(server)
            return len(workers) == WORKERS

        until(all_are_found, "all listen")
        for version, stopped in enumerate(workers, 2):
            os.kill(stopped, signal.SIGSTOP)
            try:
                publish_delta(MODEL, deltas.changes(version), repository)
                loaded = f"loaded {MODEL} version {version}"
                until(lambda: loaded in log.read_text(), "the other worker has loaded it")  # noqa: B023
                answered: list[int] = []

                def some_are_answered() -> bool:
                    if (found := ask(server)) is not None:
                        answered.append(found)  # noqa: B023
                    return len(answered) == ANSWERS  # noqa: B023

                until(some_are_answered, "the other worker answers")
                assert answered == [version - 1] * ANSWERS
                assert served_versions(server) == [version - 1] * WORKERS
            finally:
                os.kill(stopped, signal.SIGCONT)
            until(lambda: served_versions(server) == [version] * WORKERS, "all serve it")  # noqa: B023
            # None is behind once the page says so.
            assert {ask(server) for _ in range(20)} <= {version, None}
            until(lambda: ask(server) == version, "it answers")  # noqa: B023
    assert "internal error" not in log.read_text()
