"""Disks that stall, fail or vanish below tables larger than memory: coded errors, and recovery."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from sharded_infer.engines.model import Model, open_model
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, QuantizationSpec, TableSpec
from tests.support.faulty_disk import STALL, FaultyDisk, faulty_disk, refusal
from tests.support.raw_ids import Sum
from tests.support.server_pages import page
from tests.support.servers import (
    RunningServer,
    check_bits,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(refusal() is not None, reason=str(refusal()))

ROWS, SECONDS, SLOTS = 60_000, 1.5, 4
SPEC = ModelSpec(
    "large",
    (TableSpec("item", ROWS, 64),),
    DenseSpec({"age": 1}),
    quantization=QuantizationSpec("int8"),
)
# Some of these rows are asked for again and again, so the cache has them.
KNOWN = np.arange(64) * 31

# The command without io_uring, as in many containers: a filter of seccomp(2) ends io_uring_setup,
# 425 on all architectures, with EPERM.
NO_URING = """
import ctypes, struct, sys
def step(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)
steps = b"".join([
    step(0x20, 0, 0, 0),           # the call's number
    step(0x15, 0, 1, 425),
    step(0x06, 0, 0, 0x00050001),  # EPERM
    step(0x06, 0, 0, 0x7FFF0000),  # allowed
])
kept = ctypes.create_string_buffer(steps)
class Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("steps", ctypes.c_void_p))
given = Filter(4, ctypes.addressof(kept))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0           # no new privileges
assert libc.prctl(22, 2, ctypes.byref(given)) == 0  # a filter of calls
import serving.cli
serving.cli.main()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    weights = {"item": torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(1))}
    return open_model(publish(SPEC, weights, Sum(), tmp_path_factory.mktemp("stored")).path)


@pytest.fixture(scope="module")
def disk(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyDisk]:
    with faulty_disk(model.artifact.path.parents[1], tmp_path_factory.mktemp("disk")) as found:
        yield found


@pytest.fixture(scope="module", params=["io_uring", "threads"])
def server(
    request: pytest.FixtureRequest, disk: FaultyDisk, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    program = None if request.param == "io_uring" else NO_URING
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--row-memory-mib", 1, "--slots", SLOTS)
    with running_server(disk.path, log, *options, program=program) as running:
        yield running


@pytest.fixture
def asked(server: RunningServer, model: Model, disk: FaultyDisk) -> Iterator["Asked"]:
    with server.stub() as stub:
        found = Asked(stub, model)
        for _ in range(20):
            found.answer_of(KNOWN)
        yield found
    disk.says("ok")


class Asked:
    def __init__(self, stub: Any, model: Model) -> None:
        self._stub, self._model = stub, model
        self._random = np.random.default_rng(time.monotonic_ns())

    def answer_of(self, ids: np.ndarray, seconds: float = 60.0) -> None:
        """An answer that has the bits of rows in memory."""
        inputs = {"item": ids, "age": np.zeros((len(ids), 1), np.float32)}
        message = infer_request(inputs, model=SPEC.name)
        found = scores_of(self._stub.ModelInfer(message, timeout=seconds))
        check_bits(found, self._model.predict(inputs))

    def new(self) -> np.ndarray:
        """Ids most of whose rows are nowhere in memory."""
        return self._random.integers(5000, ROWS, 64)

    def fails(self, seconds: float = SECONDS) -> tuple[str, str]:
        """The code and words of a request for new rows."""
        with pytest.raises(grpc.RpcError) as raised:
            self.answer_of(self.new(), seconds)
        return raised.value.code().name, raised.value.details()


def test_rows_on_disk_have_the_bits_of_rows_in_memory(
    server: RunningServer, asked: Asked, request: pytest.FixtureRequest
) -> None:
    for _ in range(50):
        asked.answer_of(asked.new())
    opened = [os.readlink(one) for one in Path(f"/proc/{server.process.pid}/fd").iterdir()]
    reader = request.node.callspec.params["server"]
    assert any("[io_uring]" in one for one in opened) == (reader == "io_uring")


@pytest.mark.parametrize("error", ["EIO", "ENODEV", "ESTALE"])
def test_a_disk_full_of_errors_fails_what_needs_it_and_nothing_else(
    asked: Asked, disk: FaultyDisk, error: str
) -> None:
    disk.says(error)
    for _ in range(5):
        code, words = asked.fails(60.0)
        assert code == "UNAVAILABLE"
        assert "table 'item': " in words and "cannot be read" in words
        asked.answer_of(KNOWN)
    disk.says("ok")
    for _ in range(10):
        asked.answer_of(asked.new())


def test_a_disk_that_stalls_holds_nobody_and_is_used_again_when_it_answers(
    server: RunningServer, asked: Asked, disk: FaultyDisk
) -> None:
    disk.says(STALL)
    # More than there are run slots.
    with ThreadPoolExecutor(3 * SLOTS) as threads:
        ended = list(threads.map(lambda _: asked.fails(), range(3 * SLOTS)))
    for code, words in ended:
        assert code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"), words
    # It is known to have stalled: others go on, and those that need it are refused at once.
    until(lambda: "has not answered" in asked.fails()[1], "the disk is known to have stalled")
    for _ in range(10):
        asked.answer_of(KNOWN, 30.0)
    assert page(server.metrics_url.replace("/metrics", "/live"))
    disk.says("ok")

    def answered() -> bool:
        try:
            asked.answer_of(asked.new())
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True

    until(answered, "rows are read again")
    for _ in range(20):
        asked.answer_of(asked.new())
