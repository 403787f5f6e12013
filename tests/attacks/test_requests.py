"""Malformed requests: each is refused with its code and in words, and harms nobody after it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from serving.grpc_api.handlers import INFER_METHOD, PREDICT_METHOD
from sharded_infer.client.request_message import request_message
from tests.attacks.conftest import attacked_server
from tests.attacks.faulty_calls import altered
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    scores_of,
)

MAX_BATCH = 64
INVALID = grpc.StatusCode.INVALID_ARGUMENT
TOO_LARGE = grpc.StatusCode.RESOURCE_EXHAUSTED
NOT_FOUND = grpc.StatusCode.NOT_FOUND
GOOD = good_inputs(3)


@dataclass(frozen=True, slots=True)
class Target:
    """A server with small limits, a connection to it, and the scores of the good request."""

    server: RunningServer
    channel: grpc.Channel
    stub: Any
    expected: dict[str, NDArray[np.float32]]

    def check_alive(self) -> None:
        assert self.server.process.poll() is None, self.server.log.read_text()
        got = scores_of(self.stub.ModelInfer(infer_request(GOOD), timeout=10))
        for name, scores in self.expected.items():
            assert np.array_equal(got[name], scores), name


@pytest.fixture(scope="module")
def target(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    # 200 calls at once are sent, which their number alone must not refuse.
    limits = ("--max-batch", MAX_BATCH, "--max-message-mib", 1, "--max-concurrent-requests", 1024)
    log = tmp_path_factory.mktemp("requests") / "stderr"
    with (
        attacked_server(ranker.repository, log, *limits) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
        server.stub() as stub,
    ):
        yield Target(server, channel, stub, ranker.predict(GOOD))


def edited(edit: Callable[[Any], object]) -> Any:
    request = infer_request(GOOD)
    edit(request)
    return request


def good(**inputs: NDArray[np.generic]) -> Any:
    return infer_request({**GOOD, **inputs})


def share_memory(tensors: Any) -> None:
    tensors[0].parameters["shared_memory_region"].string_param = "region"
    tensors[0].parameters["shared_memory_byte_size"].int64_param = 48


def of_model(name: str, version: str = "") -> Any:
    request = infer_request(GOOD, model=name)
    request.model_version = version
    return request


def id64(*ids: int) -> NDArray[np.int64]:
    return np.array(ids, np.int64)


ONE_DENSE = np.zeros((1, 4), np.float32)
HIGH, MOST = 2**63 - 1, f"at most {MAX_BATCH}"
# What else is refused, and in which words, the readers' own tests have.
BAD: dict[str, tuple[Any, str]] = {
    "an unknown output": (
        edited(lambda r: r.outputs.add(name="scores")),
        "'scores' | score, labels",
    ),
    "one raw content too few": (
        edited(lambda r: r.raw_input_contents.pop()),
        "raw_input_contents | 8 inputs | got 7",
    ),
    "the largest id": (good(brand=id64(0, HIGH, 2)), f"'brand' | sample 1 | id {HIGH} | 0 to 19"),
}
LARGE: dict[str, tuple[Any, str]] = {
    "one sample too many": (
        infer_request(good_inputs(MAX_BATCH + 1)),
        f"{MAX_BATCH + 1} samples | {MOST}",
    ),
    "a message that is too large": (
        infer_request({"dense": ONE_DENSE, "user": np.zeros((1, 200_000), np.int64)}),
        f"message | {2**20}",
    ),
}
MISSING: dict[str, tuple[Any, str]] = {
    "shared memory for an input": (
        edited(lambda r: (share_memory(r.inputs), r.raw_input_contents.__delitem__(0))),
        "'dense' | shared memory",
    ),
    "shared memory for an output": (
        edited(lambda r: share_memory([r.outputs.add(name="score")])),
        "'score' | shared memory",
    ),
    "an unknown model": (of_model("other"), "'other'"),
    "no model": (of_model(""), "model ''"),
    "a model that is a path": (of_model("../ranker"), "'../ranker'"),
    "an unknown version": (of_model(MODEL, "2"), f"'{MODEL}' | '2' | version 1"),
    "a version that is no number": (of_model(MODEL, "latest"), f"'{MODEL}' | 'latest'"),
}
CODES = {**dict.fromkeys(BAD, INVALID), **dict.fromkeys(LARGE, TOO_LARGE)}


@pytest.mark.parametrize("case", [*BAD, *LARGE, *MISSING])
def test_a_bad_request_is_refused_in_words_and_the_next_answered(target: Target, case: str) -> None:
    request, words = (BAD | LARGE | MISSING)[case]
    with pytest.raises(grpc.RpcError) as raised:
        target.stub.ModelInfer(request, timeout=10)
    message = raised.value.details()
    assert raised.value.code() is CODES.get(case, NOT_FOUND), message
    assert [word for word in words.split(" | ") if word not in message] == [], message
    target.check_alive()


def test_the_largest_batch_that_is_allowed_is_answered(target: Target) -> None:
    response = target.stub.ModelInfer(infer_request(good_inputs(MAX_BATCH)), timeout=10)
    assert scores_of(response)["labels"].shape == (MAX_BATCH, 3)


def test_bytes_that_are_no_message_are_an_invalid_argument(target: Target) -> None:
    whole = infer_request(GOOD).SerializeToString()
    for method, data in (
        *((INFER_METHOD, data) for data in (b"\xff", b"\xff" * 100, whole[:-1])),
        *((INFER_METHOD, data) for data in (b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff")),
        ("/inference.GRPCInferenceService/ModelMetadata", b"\xff"),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            target.channel.unary_unary(method)(data, timeout=10)
        assert raised.value.code() is INVALID, (data, raised.value.details())
        words = ("is unreadable", "ModelInferRequest") if method == INFER_METHOD else ()
        assert all(word in raised.value.details() for word in words)
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
    large = infer_request({"dense": ONE_DENSE, "user": np.zeros((1, 500_000), np.int64)})
    with pytest.raises(grpc.RpcError) as raised:
        target.stub.ModelInfer(large, timeout=10, compression=grpc.Compression.Gzip)
    assert raised.value.code() is TOO_LARGE
    target.check_alive()


def test_errors_of_many_clients_do_not_mix(target: Target) -> None:
    # Every second one is bad.
    requests = [infer_request(GOOD) for _ in range(200)]
    requests[1::2] = [good(user=id64(0, 50 + number, 1)) for number in range(1, 200, 2)]
    calls = [target.stub.ModelInfer.future(request, timeout=30) for request in requests]
    for number, call in enumerate(calls):
        if number % 2:
            assert call.code() is INVALID and f"id {50 + number} " in call.details()
        else:
            got = scores_of(call.result())
            # Batch mates change the size of the matrix products, and with it their rounding.
            assert np.allclose(got["labels"], target.expected["labels"], rtol=0, atol=1e-6)
