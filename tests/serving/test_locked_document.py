"""A text that several processes change: nothing is lost, and a killed one keeps nobody waiting."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import TypeAdapter

from serving.locked_document import LockedDocument
from sharded_infer.errors import InternalError

NUMBERS = TypeAdapter(list[int])


def document(capacity: int = 4096) -> LockedDocument[list[int]]:
    return LockedDocument(capacity, NUMBERS, [])


def test_threads_and_processes_that_change_it_at_once_lose_nothing() -> None:
    shared = document()
    child = os.fork()
    if child == 0:
        for _ in range(100):
            shared.change(lambda numbers: [*numbers, 1])
        os._exit(0)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(100):
            threads.submit(shared.change, lambda numbers: [*numbers, 2])
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(shared.read()[1]) == [1] * 100 + [2] * 100
    assert shared.sequence == shared.read()[0] == 201


def test_a_change_that_fails_leaves_it_as_it_was() -> None:
    shared = document(64)
    shared.change(lambda _: [7])
    with pytest.raises(ZeroDivisionError):
        shared.change(lambda numbers: [1 // 0])
    with pytest.raises(InternalError, match="cannot fit in 64"):
        shared.change(lambda _: [10**6] * 100)
    assert shared.read()[1] == [7]
    assert shared.change(lambda numbers: [*numbers, 8]) == shared.sequence


def test_a_process_that_is_killed_while_it_changes_it_lets_go() -> None:
    shared = document()
    child = os.fork()
    if child == 0:
        shared.change(lambda _: [time.sleep(60)])  # type: ignore[func-returns-value]
        os._exit(0)
    time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shared.change(lambda _: [3])
    assert shared.read()[1] == [3]
