"""Hostile messages to the reader: refused in words, in no time, and without taking memory."""

import time
import tracemalloc

import numpy as np
import pytest

from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.request_header import read_header
from sharded_infer.errors import RequestError
from sharded_infer.v1.wire import message_field as field
from sharded_infer.v1.wire import varint
from tests.support.requests_by_chance import MAX_BATCH, SPEC, Arrays, serialized

READER = InputReader(SPEC, max_batch=MAX_BATCH)
DENSE: Arrays = {"context": np.ones((2, 3), np.float32), "bid": np.ones((2, 1), np.float32)}
GOOD = serialized({**DENSE, "item": np.array([1, 2])})
LONG = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"  # of a varint that goes on
SECONDS, BYTES = 1.0, 4 << 20


def tensor(name: bytes, shape: bytes, raw: bytes, datatype: bytes = b"INT64") -> bytes:
    body = field(1, name) + field(2, datatype) + field(3, shape)
    return field(5, body) + field(7, raw)


def shaped(*sizes: int, raw: bytes = b"", name: bytes = b"item") -> bytes:
    return serialized(DENSE) + tensor(name, b"".join(varint(size % 2**64) for size in sizes), raw)


def nested(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = field(5, content)
    return content


HOSTILE = {
    # Lengths.
    "a length beyond the end": b"\x2a\x7f",
    "a length of 2^63": b"\x2a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    "a length of 2^64 - 1": b"\x2a" + LONG + b"\x01",
    "a length that never ends": b"\x2a" + LONG * 8,
    "a shape that ends in a size": shaped(2) + field(5, field(3, b"\x80")),
    # Tags.
    "field 0": b"\x02\x00" + GOOD,
    "a group that opens": GOOD + b"\x0b",
    "a tag that never ends": GOOD + LONG * 2,
    # Shapes.
    "sizes whose product wraps to 0": shaped(2**62, 4),
    "sizes whose bytes wrap to 16": shaped(2**61 + 2, raw=bytes(16)),
    "a negative size": shaped(-1),
    "the smallest size": shaped(-(2**63), raw=bytes(8)),
    "no bytes for many samples": shaped(2**31 - 1, 0),
    "many dimensions": shaped(*[1] * 5000, raw=bytes(8)),
    "lengths of many samples": shaped(5, 2**40, name=b"sparse.lengths")
    + tensor(b"sparse.values", b"\x00", b""),
    # Counts.
    "more inputs than contents": GOOD + field(5, field(1, b"clicked") + field(2, b"INT64")),
    "more contents than inputs": GOOD + field(7, b"") * 5000,
    "inputs alone": field(5, field(1, b"item") + field(2, b"INT64") + field(3, b"\x02")) * 5000,
    "one name many times": serialized(DENSE) + tensor(b"item", b"\x02", bytes(16)) * 5000,
    "many unknown names": serialized(DENSE)
    + b"".join(tensor(b"x%d" % i, b"\x01", bytes(8)) for i in range(5000)),
    # Others.
    "inputs inside inputs": nested(5000),
    "a name of 1 MiB": serialized(DENSE)
    + field(5, field(1, b"i" * (1 << 20)) + field(2, b"INT64"))
    + b"\x3a\x00",
    "a name that is not text": serialized(DENSE) + tensor(b"\xff\xfe", b"\x01", bytes(8)),
    "nothing": b"",
}


def refusal(message: bytes) -> tuple[float, int]:
    """The processor seconds and the most bytes that reading and refusing a message took."""
    tracemalloc.start()
    started = time.thread_time()
    try:
        read_header(message)
        with pytest.raises(RequestError):
            READER.read_message(message)
        return time.thread_time() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_message_is_refused_soon_and_in_little_memory(case: str) -> None:
    message = HOSTILE[case]
    assert NativeReader(SPEC, max_batch=MAX_BATCH).read_message(message) is None
    # Processor time: a busy machine adds nothing to it. Memory: the least of three, as the
    # process's other threads allocate too.
    taken = [refusal(message) for _ in range(3)]
    assert min(seconds for seconds, _ in taken) < SECONDS
    assert min(peak for _, peak in taken) < len(message) * 20 + BYTES


def test_the_good_message_is_read_after_them() -> None:
    assert READER.read_message(GOOD).batch_size == 2


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_zeros_and_ones_are_no_request(size: int) -> None:
    for byte in (b"\x00", b"\xff", b"\x2a", b"\x3a", b"\x80"):
        with pytest.raises(RequestError):
            READER.read_message(byte * size)
