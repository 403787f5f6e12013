"""A text that one process writes and others read, whole whenever they look."""

import os
import signal
import time

import pytest

from serving.shared_document import SharedDocument
from sharded_infer.errors import InternalError


def test_what_was_written_last_is_read_with_a_new_sequence() -> None:
    document = SharedDocument(100)
    assert document.read() == (0, b"")
    seen = []
    for text in (b"one", b"", b"three" * 20):
        document.write(text)
        sequence, found = document.read()
        assert found == text and sequence == document.sequence
        seen.append(sequence)
    assert seen == sorted(set(seen)) and seen[0] > 0


def test_a_text_that_is_too_long_is_refused_and_the_last_one_stays() -> None:
    document = SharedDocument(10)
    document.write(b"here")
    with pytest.raises(InternalError, match="11 bytes cannot fit in 10"):
        document.write(b"x" * 11)
    assert document.read()[1] == b"here"


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
        while time.monotonic() < end:
            text = document.read()[1]
            assert text == text[:1] * len(text)
            seen.add(text[:1])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(seen) > 1
    sequence, text = document.read()
    assert text == text[:1] * len(text)
    document.write(b"mine")
    assert document.read() == (sequence + 1, b"mine")
