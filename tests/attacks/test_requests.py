"""Malformed requests: each is refused with its code and in words, and harms nobody after it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.grpc_api.handlers import INFER_METHOD, PREDICT_METHOD
from sharded_infer.client.request_message import request_message
from tests.attacks.faulty_calls import altered
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)

MAX_BATCH = 64
INVALID = grpc.StatusCode.INVALID_ARGUMENT
TOO_LARGE = grpc.StatusCode.RESOURCE_EXHAUSTED
NOT_FOUND = grpc.StatusCode.NOT_FOUND
GOOD = good_inputs(3)
Refusal = tuple[Any, list[str], grpc.StatusCode]


@dataclass(frozen=True, slots=True)
class Target:
    """A server with small limits, a connection to it, and the scores of the good request."""

    server: RunningServer
    channel: grpc.Channel
    expected: dict[str, NDArray[np.float32]]

    def ask(self, request: Any, seconds: float = 10.0) -> Any:
        """Sends a message."""
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        return stub.ModelInfer(request, timeout=seconds)

    def check_alive(self) -> None:
        """A good request is answered as before, to the bit."""
        assert self.server.process.poll() is None, self.server.log.read_text()
        got = scores_of(self.ask(infer_request(GOOD)))
        for name, scores in self.expected.items():
            assert np.array_equal(got[name], scores), name


@pytest.fixture(scope="module")
def target(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    # 200 calls at once are sent, which their number alone must not refuse.
    limits = ("--max-batch", MAX_BATCH, "--max-message-mib", 1, "--max-concurrent-requests", 1024)
    log = tmp_path_factory.mktemp("requests") / "stderr"
    with (
        running_server(ranker.repository, log, *limits) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        yield Target(server, channel, ranker.predict(GOOD))
    assert "Traceback" not in log.read_text(), log.read_text()


def edited(edit: Callable[[Any], object]) -> Any:
    """The good request after an edit."""
    request = infer_request(GOOD)
    edit(request)
    return request


def with_user(
    datatype: str = "INT64", shape: tuple[int, ...] = (3,), raw: bytes = bytes(24)
) -> Any:
    """The good request with its input `user` altered on the wire."""
    request = infer_request(GOOD)
    position = [tensor.name for tensor in request.inputs].index("user")
    request.inputs[position].datatype = datatype
    request.inputs[position].shape[:] = shape
    request.raw_input_contents[position] = raw
    return request


def share_memory(tensors: Any) -> None:
    tensors[0].parameters["shared_memory_region"].string_param = "region"
    tensors[0].parameters["shared_memory_byte_size"].int64_param = 48


def id64(*ids: int) -> NDArray[np.int64]:
    return np.array(ids, np.int64)


def fp32(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


def refused(request: Any, words: str, code: grpc.StatusCode = INVALID) -> Refusal:
    return request, words.split(" | "), code


HIGH = 2**63 - 1
# What else is refused, and in which words, the readers' own tests have.
CASES = {
    "an odd datatype": refused(with_user(datatype="int64"), "'user' | 'int64'"),
    "more dimensions than arrays may have": refused(
        with_user(shape=(3, *[1] * 80)), "'user' | dimensions"
    ),
    "an unknown input, close to one": refused(
        infer_request({**GOOD, "histroy": id64(1, 2, 3)}), "'histroy' | did you mean 'history'?"
    ),
    "an unknown output": refused(
        edited(lambda r: r.outputs.add(name="scores")), "'scores' | score, labels"
    ),
    "one raw content too few": refused(
        edited(lambda r: r.raw_input_contents.pop()), "raw_input_contents | 8 inputs | got 7"
    ),
    "shared memory for an input": refused(
        edited(lambda r: (share_memory(r.inputs), r.raw_input_contents.__delitem__(0))),
        "'dense' | shared memory",
        NOT_FOUND,
    ),
    "shared memory for an output": refused(
        edited(lambda r: share_memory([r.outputs.add(name="score")])),
        "'score' | shared memory",
        NOT_FOUND,
    ),
    "the largest id": refused(
        infer_request({**GOOD, "brand": id64(0, HIGH, 2)}),
        f"'brand' | sample 1 | id {HIGH} | 0 to 19",
    ),
    "no inputs": refused(
        service_pb2.ModelInferRequest(model_name=MODEL), "the request has no inputs"
    ),
    "no samples": refused(
        infer_request({"dense": fp32(0, 4), "user": id64()}), "empty | 'user' | no samples"
    ),
    "one sample too many": refused(
        infer_request(good_inputs(MAX_BATCH + 1)),
        f"{MAX_BATCH + 1} samples | at most {MAX_BATCH}",
        TOO_LARGE,
    ),
    "samples without ids, which cost a client nothing": refused(
        with_user(shape=(2**45, 0), raw=b""), f"{2**45} samples | at most {MAX_BATCH}", TOO_LARGE
    ),
    "a message that is too large": refused(
        infer_request({"dense": fp32(1, 4), "user": np.zeros((1, 200_000), np.int64)}),
        f"message | {2**20}",
        TOO_LARGE,
    ),
    "an unknown model": refused(infer_request(GOOD, model="other"), "'other'", NOT_FOUND),
    "no model": refused(infer_request(GOOD, model=""), "model ''", NOT_FOUND),
    "a model that is a path": refused(
        infer_request(GOOD, model="../ranker"), "'../ranker'", NOT_FOUND
    ),
    "an unknown version": refused(
        edited(lambda r: setattr(r, "model_version", "2")),
        f"'{MODEL}' | '2' | version 1",
        NOT_FOUND,
    ),
    "a version that is no number": refused(
        edited(lambda r: setattr(r, "model_version", "latest")), f"'{MODEL}' | 'latest'", NOT_FOUND
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_request_is_refused_in_words_and_the_next_one_is_answered(
    target: Target, case: str
) -> None:
    request, words, code = CASES[case]
    with pytest.raises(grpc.RpcError) as raised:
        target.ask(request)
    message = raised.value.details()
    assert raised.value.code() is code, message
    assert [word for word in words if word not in message] == [], message
    target.check_alive()


def test_the_largest_batch_that_is_allowed_is_answered(target: Target) -> None:
    response = target.ask(infer_request(good_inputs(MAX_BATCH)))
    assert scores_of(response)["labels"].shape == (MAX_BATCH, 3)


def test_bytes_that_are_no_message_are_an_invalid_argument(target: Target) -> None:
    send = target.channel.unary_unary(INFER_METHOD)
    whole = infer_request(GOOD).SerializeToString()
    for data in (b"\xff", b"\xff" * 100, whole[:-1], b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff"):
        with pytest.raises(grpc.RpcError) as raised:
            send(data, timeout=10)
        assert raised.value.code() is INVALID, (data, raised.value.details())
        assert "ModelInferRequest" in raised.value.details()
    with pytest.raises(grpc.RpcError) as raised:
        target.channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")(b"\xff")
    assert raised.value.code() is INVALID
    target.check_alive()


def predict_message() -> bytes:
    candidates = {"dense": np.zeros((3, 4), np.float32), "item": id64(1, 2, 3)}
    return request_message(MODEL, user={"user": [7], "brand": [1, 2]}, candidates=candidates)


GOOD_MESSAGES = {
    INFER_METHOD: infer_request(GOOD).SerializeToString(),
    PREDICT_METHOD: predict_message(),
}


@pytest.mark.parametrize("method", GOOD_MESSAGES)
def test_altered_messages_are_refused_in_words_or_answered(target: Target, method: str) -> None:
    """That accepted ones are read rightly, the readers' own tests show."""
    random, good = Random(1), GOOD_MESSAGES[method]
    ask = target.channel.unary_unary(method)
    calls = [ask.future(altered(random, good), timeout=60) for _ in range(1000)]
    codes = {call.code() for call in calls}
    assert codes <= {grpc.StatusCode.OK, INVALID, NOT_FOUND, TOO_LARGE} and len(codes) > 2
    assert all(call.details() for call in calls if call.code() is not grpc.StatusCode.OK)
    target.check_alive()


def test_a_message_that_grows_as_it_is_unpacked_is_refused_as_exhausted(target: Target) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(target.channel)
    large = infer_request({"dense": fp32(1, 4), "user": np.zeros((1, 500_000), np.int64)})
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(large, timeout=10, compression=grpc.Compression.Gzip)
    assert raised.value.code() is TOO_LARGE
    target.check_alive()


def test_errors_of_many_clients_do_not_mix(target: Target) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(target.channel)
    calls = []
    for number in range(200):
        bad = number % 2 == 1
        request = (
            infer_request({**GOOD, "user": id64(0, 50 + number, 1)}) if bad else infer_request(GOOD)
        )
        calls.append((number, bad, stub.ModelInfer.future(request, timeout=30)))
    for number, bad, call in calls:
        if bad:
            assert call.code() is INVALID and f"id {50 + number} " in call.details()
        else:
            got = scores_of(call.result())
            # Batch mates change the size of the matrix products, and with it their rounding.
            assert np.allclose(got["labels"], target.expected["labels"], rtol=0, atol=1e-6)
