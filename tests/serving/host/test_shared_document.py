import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import TypeAdapter

from serving.host.shared_document import LockedDocument, SharedDocument
from sharded_infer.errors import InternalError


def test_what_was_written_last_is_read_with_a_new_sequence() -> None:
    document = SharedDocument(100)
    assert document.read() == (0, b"")
    for number, text in enumerate((b"one", b"", b"three" * 20), 1):
        document.write(text)
        assert document.read() == (number, text) and document.sequence == number


def test_readers_see_whole_texts_while_another_process_writes_and_after_it_is_killed() -> None:
    document = SharedDocument(1 << 20)
    document.write(b"0" * 1000)
    pid = os.fork()
    if pid == 0:
        # Texts of one character each, of lengths that go up and down.
        number = 0
        while True:
            number += 1
            document.write(str(number % 10).encode() * (1 + number * 7919 % (1 << 19)))
    seen = set()
    try:
        end = time.monotonic() + 1.0
        # A busy machine may let the writer wait.
        while time.monotonic() < end or len(seen) < 2:
            text = document.read()[1]
            assert text == text[:1] * len(text)
            seen.add(text[:1])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    sequence, text = document.read()
    assert text == text[:1] * len(text)
    document.write(b"mine")
    assert document.read() == (sequence + 1, b"mine")


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
    changes, told = os.pipe()
    child = os.fork()
    if child == 0:
        shared.change(lambda _: [os.write(told, b"x"), signal.pause()])  # type: ignore[func-returns-value]
        os._exit(0)
    assert os.read(changes, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shared.change(lambda _: [3])
    assert shared.read()[1] == [3]
