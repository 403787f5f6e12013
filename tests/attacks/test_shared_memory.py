"""Shared memory that is not what it was said to be: refused in words, never a dead process."""

import os
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.errors import AlreadyExistsError, LimitError
from serving.protocol.request_tensors import RequestTensors
from serving.shared_memory.regions import MOST_REGIONS, SharedMemory, Span
from sharded_infer.errors import NotFoundError, RequestError, RequestTooLargeError
from tests.attacks.conftest import attacked_server
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)

FOLDER = Path("/dev/shm")  # noqa: S108 - what this is about
Make = Callable[[int], Path]


@pytest.fixture
def make_object() -> Iterator[Make]:
    paths: list[Path] = []

    def make(size: int) -> Path:
        paths.append(FOLDER / f"sharded-infer-test-{uuid.uuid4().hex}")
        with paths[-1].open("wb") as file:
            file.truncate(size)
        return paths[-1]

    yield make
    for path in paths:
        path.unlink(missing_ok=True)


@pytest.fixture
def memory() -> SharedMemory:
    return SharedMemory(most_bytes=1 << 20)


KEYS = ("", "/", "..", "/../etc/passwd", "a/b", "//a", "a/", "a\0b", "x" * 256, "ü" * 128)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_no_name_is_refused(memory: SharedMemory, key: str) -> None:
    with pytest.raises(RequestError, match="shared memory key"):
        memory.register("region", key, offset=0, byte_size=1)


def test_a_region_outside_its_object_is_refused(memory: SharedMemory, make_object: Make) -> None:
    key, most = make_object(64).name, 2**64 - 1
    for offset, size in (
        (0, 0), (0, 65), (64, 1), (1, 64), (most, 1), (0, most), (2**63, 2**63), (-1, 8),
    ):  # fmt: skip
        with pytest.raises(RequestError, match="would not be in object"):
            memory.register("region", key, offset=offset, byte_size=size)


def test_only_shared_memory_objects_are_opened(memory: SharedMemory, make_object: Make) -> None:
    link, pipe, folder = (FOLDER / f"sharded-infer-test-{uuid.uuid4().hex}" for _ in range(3))
    link.symlink_to("/etc/passwd")
    os.mkfifo(pipe)
    folder.mkdir()
    try:
        for path in (link, pipe, folder):
            with pytest.raises((RequestError, NotFoundError)):
                memory.register("region", path.name, offset=0, byte_size=1)
    finally:
        link.unlink()
        pipe.unlink()
        folder.rmdir()
    assert memory.regions() == {}


def test_names_and_number_of_regions_are_bounded(memory: SharedMemory, make_object: Make) -> None:
    key = make_object(64).name
    for name in ("", "x" * 256):
        with pytest.raises(RequestError, match="expected a name"):
            memory.register(name, key, offset=0, byte_size=1)
    longest = '"' * 250
    for number in range(MOST_REGIONS):
        memory.register(f"{longest}{number}", key, offset=0, byte_size=1)
    with pytest.raises(LimitError, match=str(MOST_REGIONS)):
        memory.register("one more", key, offset=0, byte_size=1)
    with pytest.raises(AlreadyExistsError):
        memory.register(f"{longest}0", key, offset=0, byte_size=1)
    memory.unregister("")
    assert memory.regions() == {}


def test_processes_and_threads_register_at_once(memory: SharedMemory, make_object: Make) -> None:
    key = make_object(64).name
    child = os.fork()
    if child == 0:
        for number in range(50):
            memory.register(f"child-{number}", key, offset=0, byte_size=1)
        os._exit(0)
    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            threads.submit(memory.register, f"{number}", key, offset=0, byte_size=1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(memory.regions()) == 100


def test_a_span_outside_its_region_is_refused(memory: SharedMemory, make_object: Make) -> None:
    memory.register("region", make_object(4096).name, offset=0, byte_size=64)
    most = 2**63 - 1
    for offset, size in ((0, 65), (64, 1), (1, 64), (most, 1), (0, most), (most, most)):
        span = Span("region", offset, size)
        for use in (lambda: memory.read(span, "x"), lambda: memory.write(span, b"x", "y")):  # noqa: B023
            with pytest.raises(RequestError, match="would not be in shared memory region 'region'"):
                use()


def test_a_shrunk_gone_or_other_object_is_an_error(memory: SharedMemory, make_object: Make) -> None:
    path, span = make_object(64), Span("region", 0, 64)
    memory.register("region", path.name, offset=0, byte_size=64)
    os.truncate(path, 63)
    for use in (lambda: memory.read(span, "x"), lambda: memory.write(span, bytes(64), "x")):
        with pytest.raises(RequestError, match="has 63 bytes now, 64 are needed"):
            use()
    path.unlink()
    with pytest.raises(RequestError, match="has vanished"):
        memory.read(span, "x")
    path.write_bytes(bytes(64))
    with path.open("rb"), pytest.raises(RequestError, match="is another one now"):
        memory.read(span, "x")


def test_an_absent_terabyte_takes_no_memory(memory: SharedMemory, make_object: Make) -> None:
    memory.register("region", make_object(1 << 40).name, offset=0, byte_size=1 << 40)
    shared = RequestTensors(memory)
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLargeError, match="at most 1048576 are allowed"):
            shared.read(Span("region", 0, 1 << 40), 1 << 40, "input 'x'")
        for _ in range(16):
            shared = RequestTensors(memory)
            shared.read(Span("region", 0, 1 << 20), 1 << 20, "input 'x'")
        with pytest.raises(RequestTooLargeError):
            shared.read(Span("region", 0, 1), 1, "input 'x'")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- against a server


@pytest.fixture(scope="module")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("shared") / "stderr"
    with attacked_server(ranker.repository, log, "--workers", 2) as server:
        yield server


def register(stub: Any, name: str, key: str, size: int) -> None:
    request = service_pb2.SystemSharedMemoryRegisterRequest
    stub.SystemSharedMemoryRegister(request(name=name, key=key, byte_size=size))


def unregister(stub: Any, name: str = "") -> None:
    stub.SystemSharedMemoryUnregister(service_pb2.SystemSharedMemoryUnregisterRequest(name=name))


def shared_request(name: str, size: int, offset: int = 0, **parameters: Any) -> Any:
    request = infer_request(good_inputs(64))
    index = [tensor.name for tensor in request.inputs].index("dense")
    del request.raw_input_contents[index]
    values = request.inputs[index].parameters
    values["shared_memory_region"].string_param = name
    values["shared_memory_byte_size"].int64_param = size
    values["shared_memory_offset"].int64_param = offset
    return request


def test_a_cut_region_is_harmless(server: RunningServer, ranker: Ranker, make_object: Make) -> None:
    path, size = make_object(1 << 16), 64 * 16
    over = threading.Event()

    def shake() -> None:
        while not over.is_set():
            os.truncate(path, 0)
            os.truncate(path, 1 << 16)

    with server.stub() as stub:
        register(stub, "shaken", path.name, 1 << 16)
        thread = threading.Thread(target=shake)
        thread.start()
        codes = set()
        try:
            for number in range(300):
                request = shared_request("shaken", size, number * 8)
                output = request.outputs.add(name="score")
                output.parameters["shared_memory_region"].string_param = "shaken"
                output.parameters["shared_memory_byte_size"].int64_param = 256
                try:
                    stub.ModelInfer(request, timeout=10)
                    codes.add("OK")
                except grpc.RpcError as error:
                    codes.add(error.code().name)
        finally:
            over.set()
            thread.join()
        assert codes <= {"OK", "INVALID_ARGUMENT"} and "OK" in codes
        unregister(stub)
        inputs = good_inputs(3)
        scores = scores_of(stub.ModelInfer(infer_request(inputs), timeout=10))
    assert np.array_equal(scores["score"], ranker.predict(inputs)["score"])
    assert server.process.poll() is None
    assert MODEL in server.ready["models"][0]["name"]


def placed_request(name: str, size: int) -> Any:
    request = infer_request(good_inputs(64))
    values = request.outputs.add(name="score").parameters
    values["shared_memory_region"].string_param = name
    values["shared_memory_byte_size"].int64_param = size
    return request


def test_an_object_that_is_not_what_was_registered_is_named_for_inputs_and_outputs(
    server: RunningServer, make_object: Make
) -> None:
    path, kept = make_object(1 << 12), make_object(1)
    requests = (shared_request("old", 64 * 16), placed_request("old", 256))
    with server.stub() as stub:
        unregister(stub)
        register(stub, "old", path.name, 1 << 12)

        def refused(words: str) -> None:
            for request in requests:
                with pytest.raises(grpc.RpcError) as refusal:
                    stub.ModelInfer(request, timeout=10)
                assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert words in refusal.value.details()

        for request in requests:
            stub.ModelInfer(request, timeout=10)
        os.truncate(path, 100)
        refused("has 100 bytes now")
        # Its number stays its own.
        path.rename(kept)
        refused("has vanished")
        path.write_bytes(bytes(1 << 12))
        refused("is another one now")
        assert path.read_bytes() == bytes(1 << 12)


def test_all_workers_know_the_same_regions(server: RunningServer, make_object: Make) -> None:
    path = make_object(1 << 12)
    with server.stub() as stub:
        unregister(stub)
        register(stub, "known", path.name, 1 << 12)
    for _ in range(12):
        with server.stub() as stub:
            status = stub.SystemSharedMemoryStatus(service_pb2.SystemSharedMemoryStatusRequest())
            assert set(status.regions) == {"known"}
            stub.ModelInfer(shared_request("known", 64 * 16), timeout=10)
    with server.stub() as stub:
        unregister(stub, "known")
    for _ in range(12):
        with server.stub() as stub, pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(shared_request("known", 64 * 16), timeout=10)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_numbers_that_overflow_or_lie_are_refused(server: RunningServer, make_object: Make) -> None:
    with server.stub() as stub:
        unregister(stub)
        register(stub, "odd", make_object(1 << 12).name, 1 << 12)
        for size, offset in ((-1, 0), (1024, -1), (2**63 - 1, 2**63 - 1), (1023, 0)):
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(shared_request("odd", size, offset), timeout=10)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "'dense'" in refused.value.details()


def test_a_server_that_offers_no_shared_memory_says_so(ranker: Ranker, tmp_path: Path) -> None:
    with (
        running_server(ranker.repository, tmp_path / "log", "--no-shared-memory") as server,
        server.stub() as stub,
    ):
        unregister(stub)
        for call, code in (
            (lambda: register(stub, "a", "b", 1), "UNIMPLEMENTED"),
            (lambda: stub.ModelInfer(shared_request("a", 1024)), "INVALID_ARGUMENT"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert refused.value.code().name == code
            assert "--shared-memory" in refused.value.details()
