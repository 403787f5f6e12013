"""Priority of work beside requests, on threads of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from serving.host import background
from serving.host.background import LOWEST, run_beside_requests


def scheduling() -> tuple[int, int]:
    """Policy and nice value of the calling thread."""
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


@contextmanager
def busy_core() -> Iterator[None]:
    """One core for the calling thread, which a process of usual priority takes wholly."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    spin = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    try:
        with subprocess.Popen(spin, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()
                yield
            finally:
                process.kill()
    finally:
        os.sched_setaffinity(0, before)


def test_work_beside_requests_never_waits_with_the_interpreter_lock_for_an_idle_core() -> None:
    with busy_core():
        assert run_beside_requests(scheduling) == (os.SCHED_OTHER, LOWEST)


def test_work_beside_requests_takes_only_idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LEAST_IDLE", 0.0)  # however busy the cores are
    before = scheduling()
    assert run_beside_requests(scheduling) == (os.SCHED_IDLE, LOWEST)
    assert scheduling() == before


def test_errors_of_work_beside_requests_are_raised() -> None:
    with pytest.raises(KeyError, match="table"):
        run_beside_requests(lambda: {}["table"])
