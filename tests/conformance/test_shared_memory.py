"""System and CUDA shared memory as NVIDIA's clients use them."""

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from numpy.typing import NDArray

from tests.conformance.clients import Client, refused
from tests.support.servers import MODEL, Ranker, good_inputs

Make = Callable[[int], tuple[str, Any]]


@pytest.fixture
def make_region(client: Client) -> Iterator[Make]:
    """Makes and registers a region of so many bytes; gives its name and handle."""
    handles = []
    client.call("unregister_system_shared_memory")

    def make(size: int) -> tuple[str, Any]:
        name = f"region-{uuid.uuid4().hex}"
        handle = shm.create_shared_memory_region(name, f"/sharded-infer-{name}", size)
        handles.append(handle)
        client.call("register_system_shared_memory", name, f"/sharded-infer-{name}", size)
        return name, handle

    yield make
    client.call("unregister_system_shared_memory")
    for handle in handles:
        shm.destroy_shared_memory_region(handle)


def shared(client: Client, inputs: dict[str, NDArray[Any]], name: str, handle: Any) -> list[Any]:
    tensors, at = [], 0
    for key, array in inputs.items():
        tensor = client.input(key, array)
        shm.set_shared_memory_region(handle, [array], offset=at)
        tensor.set_shared_memory(name, array.nbytes, at)
        tensors.append(tensor)
        at += array.nbytes
    return tensors


def test_shared_tensors_equal_messages(client: Client, ranker: Ranker, make_region: Make) -> None:
    inputs = good_inputs(5)
    expected = ranker.predict(inputs)
    name, handle = make_region(4096)
    target, scores = make_region(256)
    tensors = shared(client, inputs, name, handle)
    score, labels = client.output("score"), client.output("labels")
    score.set_shared_memory(target, 20)
    labels.set_shared_memory(target, 100, 32)
    result = client.call("infer", MODEL, tensors, outputs=[labels, score])
    found = shm.get_contents_as_numpy(scores, np.float32, (5,))
    assert np.array_equal(found, expected["score"])
    found = shm.get_contents_as_numpy(scores, np.float32, (5, 3), offset=32)
    assert np.array_equal(found, expected["labels"])
    if not client.streams:
        first, second = client.response(result)["outputs"]
        assert (first["shape"], second["shape"]) == ([5], [5, 3])
        # As Triton: perf_analyzer takes an output with parameters for a binary one.
        assert set(first) == set(second) == {"name", "datatype", "shape"}
        return
    response = result.get_response()
    # Clients in C++ look for each output's contents at its position.
    assert list(response.raw_output_contents) == [b"", b""]
    assert [list(output.shape) for output in response.outputs] == [[5], [5, 3]]
    assert response.outputs[1].parameters["shared_memory_region"].string_param == target
    assert response.outputs[1].parameters["shared_memory_offset"].int64_param == 32
    assert response.outputs[1].parameters["shared_memory_byte_size"].int64_param == 60


def test_some_tensors_may_be_shared(client: Client, ranker: Ranker, make_region: Make) -> None:
    inputs = good_inputs(3)
    name, handle = make_region(4096)
    tensors = [client.input(key, array) for key, array in inputs.items()]
    [moved] = shared(client, {"user": inputs["user"]}, name, handle)
    tensors[list(inputs).index("user")] = moved
    labels = client.output("labels")
    labels.set_shared_memory(name, 36, 1024)
    for _ in range(2):
        result = client.call("infer", MODEL, tensors, outputs=[client.output("score"), labels])
        expected = ranker.predict(inputs)
        assert np.array_equal(result.as_numpy("score"), expected["score"])
        found = shm.get_contents_as_numpy(handle, np.float32, (3, 3), offset=1024)
        assert np.array_equal(found, expected["labels"])
        # What lies there is read anew each time.
        inputs["user"] = (inputs["user"] + 1) % 50
        shm.set_shared_memory_region(handle, [inputs["user"]])


def test_the_status_says_what_is_registered(client: Client, make_region: Make) -> None:
    first, _ = make_region(64)
    second, _ = make_region(128)
    regions = client.describe("get_system_shared_memory_status")["regions"]
    assert set(regions) == {first, second}
    one = client.describe("get_system_shared_memory_status", second)["regions"]
    assert set(one) == {second}
    assert one[second]["key"] == f"/sharded-infer-{second}" and int(one[second]["byte_size"]) == 128
    client.call("unregister_system_shared_memory", first)
    client.call("unregister_system_shared_memory", first)
    assert set(client.describe("get_system_shared_memory_status")["regions"]) == {second}
    asking = partial(client.describe, "get_system_shared_memory_status", first)
    refused("NOT_FOUND", "", client, asking)


def test_no_region_is_registered_twice_or_too_large(client: Client, make_region: Make) -> None:
    name, _ = make_region(64)
    key = f"/sharded-infer-{name}"
    cases = {
        "ALREADY_EXISTS": (name, key, 64),
        "INVALID_ARGUMENT": ("larger", key, 2**63),
        "NOT_FOUND": ("nothing", "/sharded-infer-nothing", 64),
    }
    for code, arguments in cases.items():
        register = partial(client.call, "register_system_shared_memory", *arguments)
        refused(code, "", client, register)
    assert set(client.describe("get_system_shared_memory_status")["regions"]) == {name}


def test_an_output_larger_than_its_place_is_refused(client: Client, make_region: Make) -> None:
    name, _ = make_region(64)
    inputs = [client.input(key, array) for key, array in good_inputs(5).items()]
    score = client.output("score")
    asking = partial(client.call, "infer", MODEL, inputs, outputs=[score])
    for region, size, offset, code in (
        (name, 19, 0, "INVALID_ARGUMENT"),
        (name, 64, 1, "INVALID_ARGUMENT"),
        ("nobody", 64, 0, "NOT_FOUND"),
    ):
        score.set_shared_memory(region, size, offset)
        refused(code, "", client, asking)


def test_cuda_shared_memory_is_refused_where_there_is_no_device(client: Client) -> None:
    client.call("unregister_cuda_shared_memory")
    assert not client.describe("get_cuda_shared_memory_status").get("regions")
    register = partial(client.call, "register_cuda_shared_memory", "region", b"AAAA", 0, 64)
    refused("UNIMPLEMENTED", "CPU", client, register)
