"""Processes of a server that are stopped, or hang: noticed, replaced, and no brake on its end."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.support.server_pages import readiness
from tests.support.server_processes import (
    children_of,
    follower_of,
    is_alive,
    standby_of,
    workers_of,
)
from tests.support.servers import (
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    publish_ranker,
    running_server,
)
from tests.support.waiting import until

LIMIT_SECONDS = 4
WATCHED = ("--workers", 2, "--heartbeat-seconds", LIMIT_SECONDS)
# Readiness tells a silent worker for half of this time: a busy machine must not miss it.
WATCHED_FOR_LONG = ("--workers", 2, "--heartbeat-seconds", 3 * LIMIT_SECONDS)
KILLED_WORKER = re.compile(r"worker \d gave no sign of life")
# Longer than a test waits for a server's end.
DRAINS = ("--drain-seconds", 3600)
SILENT = (503, "a worker gives no sign of life")
# A request of seven samples never ends: native code waits for ever, with or without the GIL. A file
# tells that it runs: a worker that keeps the GIL answers no HTTP request.
HANGS = """
import ctypes
import pathlib
import serving.inference.batch_execution
import serving.cli

run = serving.inference.batch_execution.run_batch

def hang(model, batch, *more, **named):
    while batch.batch_size == 7:
        pathlib.Path("{runs}").touch()
        ctypes.{library}(None).sleep(3600)
    return run(model, batch, *more, **named)

serving.inference.batch_execution.run_batch = hang
serving.cli.main()
"""
# Loads of a later version take longer than the limit.
LOADS_SLOWLY = """
import os
import ctypes
import serving.cli
import serving.versions.version_loader

check, first = serving.versions.version_loader.check_golden, os.getpid()

def slow(model):
    if os.getpid() != first:
        ctypes.CDLL(None).usleep({seconds} * 1000000)
    return check(model)

serving.versions.version_loader.check_golden = slow
serving.cli.main()
"""


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGCONT)


def asked(server: RunningServer, batch: int = 2, seconds: float = 10) -> grpc.StatusCode:
    """What a request on a connection of its own ends with."""
    with server.stub() as stub:
        call = stub.ModelInfer.future(infer_request(good_inputs(batch)), timeout=seconds)
        code: grpc.StatusCode = call.code()
        return code


def both_of(server: RunningServer) -> list[int]:
    """The two workers; the kernel's list of sockets may lack one while others come and go."""
    found: list[int] = []

    def are_two() -> bool:
        found[:] = workers_of(server)
        return len(found) == 2

    until(are_two, "two workers listen")
    return found


def await_successor(server: RunningServer, victim: int) -> None:
    until(lambda: not is_alive(victim), "it is killed")
    until(lambda: len(workers_of(server)) == 2, "a successor listens")
    until(lambda: readiness(server) == (200, "ready"), "the server is ready")
    assert asked(server) is grpc.StatusCode.OK
    assert KILLED_WORKER.search(server.log.read_text())


@pytest.fixture(scope="module")
def watched(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of two workers, into whose repository versions may be published."""
    home = tmp_path_factory.mktemp("watched")
    repository = shutil.copytree(ranker.repository, home / "repository")
    program = LOADS_SLOWLY.format(seconds=int(1.5 * LIMIT_SECONDS))
    options = (*WATCHED, "--poll-seconds", 0.1)
    with running_server(repository, home / "log", *options, program=program) as server:
        yield server


@pytest.fixture
def left_alone(watched: RunningServer) -> Iterator[None]:
    before = set(both_of(watched))
    yield
    assert set(both_of(watched)) == before
    assert not KILLED_WORKER.search(watched.log.read_text())


def test_a_server_of_stopped_workers_says_so_and_comes_back(ranker: Ranker, tmp_path: Path) -> None:
    with running_server(ranker.repository, tmp_path / "log", *WATCHED_FOR_LONG) as server:
        first, second = both_of(server)
        with stopped(first, second):
            until(lambda: readiness(server) == SILENT, "the standby process says so")
            assert is_alive(first) and is_alive(second)
            await_successor(server, first)
            await_successor(server, second)


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])
def test_a_worker_that_hangs_is_replaced(library: str, ranker: Ranker, tmp_path: Path) -> None:
    log, runs = tmp_path / "log", tmp_path / "runs"
    program = HANGS.format(library=library, runs=runs)
    with running_server(ranker.repository, log, *WATCHED, *DRAINS, program=program) as server:
        before = set(both_of(server))
        assert asked(server, batch=7, seconds=60) is grpc.StatusCode.UNAVAILABLE
        # Its connections end before it has.
        until(lambda: not all(map(is_alive, before)), "it has ended")
        (victim,) = {pid for pid in before if not is_alive(pid)}
        await_successor(server, victim)
        runs.unlink()
        # And once more, at the end: the drain of an hour is not waited for.
        with server.stub() as stub:
            hangs = stub.ModelInfer.future(infer_request(good_inputs(7)), timeout=60)
            until(runs.exists, "it runs")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(50) == 0
            assert hangs.code() is grpc.StatusCode.UNAVAILABLE


def test_stopped_processes_do_not_hold_up_the_end(ranker: Ranker, tmp_path: Path) -> None:
    options = ("--workers", 2, *DRAINS)
    with running_server(ranker.repository, tmp_path / "log", *options) as server:
        victims = (both_of(server)[0], follower_of(server), standby_of(server))
        children = children_of(server.process.pid)
        with stopped(*victims):
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(50) == 0
            assert not any(map(is_alive, children))
    # They have drained as the other has, and were not killed.
    assert "killed" not in (tmp_path / "log").read_text()


@pytest.mark.usefixtures("left_alone")
def test_other_stopped_processes_are_replaced_while_it_stays_ready(watched: RunningServer) -> None:
    victims = (follower_of(watched), standby_of(watched))
    with stopped(*victims):
        until(lambda: not any(map(is_alive, victims)), "they are killed")
    until(lambda: len(children_of(watched.process.pid)) == 4, "successors are there")
    until(lambda: readiness(watched) == (200, "ready"), "the server is ready")


@pytest.mark.usefixtures("left_alone")
def test_a_server_paused_as_a_whole_goes_on_with_the_same_workers(watched: RunningServer) -> None:
    with stopped(watched.process.pid, *children_of(watched.process.pid)):
        # The pause itself, longer than any silence that is allowed.
        time.sleep(1.5 * LIMIT_SECONDS)
    until(lambda: readiness(watched) == (200, "ready"), "it answers")
    assert asked(watched) is grpc.StatusCode.OK


@pytest.mark.usefixtures("left_alone")
def test_a_worker_that_loads_longer_than_the_limit_is_left_alone(watched: RunningServer) -> None:
    publish_ranker(watched.log.parent / "repository", seed=2)
    until(lambda: "loaded ranker version 2" in watched.log.read_text(), "it is loaded")


def test_a_single_process_is_not_live_where_a_batch_hangs(ranker: Ranker, tmp_path: Path) -> None:
    program = HANGS.format(library="CDLL", runs=tmp_path / "runs")
    options = ("--heartbeat-seconds", 1, "--drain-seconds", 1)
    with running_server(ranker.repository, tmp_path / "log", *options, program=program) as server:
        assert readiness(server, "/live") == (200, "live")
        with server.stub() as stub:
            hangs = stub.ModelInfer.future(infer_request(good_inputs(7)), timeout=60)
            until(lambda: readiness(server, "/live") == (503, "a batch hangs"), "the probe fails")
            hangs.cancel()
