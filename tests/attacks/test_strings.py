"""Hostile strings: left by compiled code, refused in words, and never read beyond their bytes."""

import ctypes
import mmap
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from serving.abi import reader as abi
from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.wire_strings import packed_strings
from serving.protocol.wire_tensors import WireTensor, infer_message
from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.v1 import predictor_pb2
from tests.support.requests_by_chance import check_same
from tests.support.string_requests import (
    AGE,
    MAPS,
    MAX_BATCH,
    SPEC,
    Sent,
    message_of,
    native_reader,
    portable_reader,
    strings,
)

GOOD = packed_strings([b"a", b"", b"bcd"])


def length(number: int) -> bytes:
    return struct.pack("<I", number)


HOSTILE = {
    "nothing": ([3], b""),
    "lengths alone, one too few": ([3], length(0) * 2),
    "a cut length": ([3], GOOD[:-4]),
    "a cut string": ([3], GOOD[:-1]),
    "a byte more": ([3], GOOD + b"\0"),
    "an element more": ([3], GOOD + length(0)),
    "a length of 2^32 - 1": ([1], length(2**32 - 1) + b"abcd"),
    "a length that takes the next ones": ([3], length(8) + GOOD),
    "a length of everything": ([2], length(len(GOOD)) + GOOD),
    "bytes of no element": ([0], length(0)),
    "bytes of no bags": ([0, 4], GOOD),
    "elements beyond all memory": ([2**62], GOOD),
    "elements whose bytes wrap": ([2**62, 4], GOOD),
    "a negative size": ([-3], GOOD),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_strings_are_refused_by_input(case: str) -> None:
    shape, data = HOSTILE[case]
    asked = {"age": AGE, "word": Sent("BYTES", shape, data)}
    message = message_of(asked)
    native = native_reader()
    assert native.read_message(message) is None
    reader = InputReader(SPEC, max_batch=MAX_BATCH, id_maps=MAPS)
    with pytest.raises(RequestError, match="input 'word'"):
        reader.read_message(message)
    assert reader.read_message(message_of({"age": AGE, "word": strings([b"a"])})).batch_size == 1


class BeforeUnreadable:
    """Bytes before a page that cannot be read."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        second = ctypes.c_void_p(self._base + mmap.PAGESIZE)
        if libc.mprotect(second, ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes) -> int:
        """Their address."""
        first = mmap.PAGESIZE - len(data)
        self._memory[first : mmap.PAGESIZE] = data
        return self._base + first


def test_nothing_behind_the_strings_is_read() -> None:
    native, portable, memory = native_reader(), portable_reader(), BeforeUnreadable()

    def read(message: bytes) -> ModelInput | None:
        scans = (abi.scan_keeping_gil,)
        return native._read(scans, len(message), memory.put(message), len(message))

    def message(name: str, shape: Sequence[int], data: bytes) -> bytes:
        return infer_message([WireTensor("age", *AGE), WireTensor(name, "BYTES", shape, data)])

    for shape, data in [*HOSTILE.values(), ([3], GOOD)]:
        for cut in range(len(data) + 1):
            for name in ("word", "token"):
                sent = message(name, shape, data[:cut])
                found = read(sent)
                try:
                    wanted = portable.read_message(sent)
                except RequestError:
                    assert found is None
                else:
                    assert found is not None
                    check_same(found, wanted)
    # Strings of every length that a hash reads in its own way.
    for size in [*range(260), 1000, 4000]:
        for name in ("word", "token"):
            assert read(message(name, [1], packed_strings([b"x" * size]))) is not None


def test_changed_strings_of_predict_calls_are_read_by_compiled_code_as_by_protobuf() -> None:
    spec = ModelSpec("words", (TableSpec("word", 9, 1, id_map=IdMapSpec("zero", "xxh3_64")),))
    good = predictor_pb2.PredictRequest(model="words")
    good.candidates.sparse.add(
        name="word", strings="aé".encode() * 3, string_lengths=[1, 2, 3, 0, 3], lengths=[2, 0, 3]
    )
    data = np.frombuffer(good.SerializeToString(), np.uint8)
    generator, native = np.random.default_rng(11), NativeReader(spec, max_batch=8)
    portable, taken = PortableReader(spec, max_batch=8), 0
    for _ in range(3000):
        changed = data.copy()
        places = generator.integers(0, len(changed), generator.integers(1, 4))
        changed[places] = generator.integers(0, 256, len(places))
        sent = changed.tobytes()
        read = native.read_message(sent, MessageFormat.PREDICT)
        try:
            wanted = portable.read_message(sent, form=MessageFormat.PREDICT)
        except RequestError:
            assert read is None
            continue
        if read is not None:
            check_same(read, wanted)
            taken += 1
    assert taken
