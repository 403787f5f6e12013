"""Malformed requests: each is refused with its code and in words, and harms nobody after it."""

import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.servers import (
    MODEL,
    RunningServer,
    good_inputs,
    infer_request,
    publish_ranker,
    running_server,
    scores_of,
)

MAX_BATCH = 64
# How an HTTP/2 connection begins.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
TOO_LARGE = grpc.StatusCode.RESOURCE_EXHAUSTED
NOT_FOUND = grpc.StatusCode.NOT_FOUND
GOOD = good_inputs(3)


@dataclass(frozen=True, slots=True)
class Target:
    """A server with small limits, and what it must keep answering.

    Attributes:
        server: the server.
        channel: a connection to it.
        expected: the scores of the good request.
    """

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
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("attacked")
    ranker = publish_ranker(folder / "repository")
    limits = ("--max-batch", MAX_BATCH, "--max-message-mib", 1)
    log = folder / "stderr"
    with (
        # Some tests send 200 calls at once, which their number alone must not refuse.
        running_server(
            ranker.repository, log, *limits, "--max-concurrent-requests", 1024
        ) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        yield Target(server, channel, ranker.predict(GOOD))
    assert "Traceback" not in log.read_text(), log.read_text()


def with_inputs(**changed: NDArray[Any] | None) -> Any:
    """The good request with inputs replaced, added, or left out for None."""
    inputs = {**GOOD, **{name.replace("__", "."): array for name, array in changed.items()}}
    return infer_request({name: array for name, array in inputs.items() if array is not None})


def only(**inputs: NDArray[Any]) -> Any:
    """A request of the dense input and nothing else but what is given."""
    named = {name.replace("__", "."): array for name, array in inputs.items()}
    return infer_request({"dense": GOOD["dense"], **named})


def edited(edit: Callable[[Any], object]) -> Any:
    """The good request after an edit."""
    request = infer_request(GOOD)
    edit(request)
    return request


def tensor_of(request: Any, name: str) -> Any:
    return next(tensor for tensor in request.inputs if tensor.name == name)


def with_tensor(
    name: str,
    *,
    datatype: str | None = None,
    shape: list[int] | None = None,
    raw: bytes | None = None,
) -> Any:
    """The good request with one of its inputs altered on the wire."""

    def edit(request: Any) -> None:
        position = [tensor.name for tensor in request.inputs].index(name)
        tensor = request.inputs[position]
        tensor.datatype = tensor.datatype if datatype is None else datatype
        if shape is not None:
            tensor.shape[:] = shape
        if raw is not None:
            request.raw_input_contents[position] = raw

    return edited(edit)


def typed(name: str, datatype: str, shape: list[int], **contents: list[Any]) -> Any:
    """A request whose contents are typed: a good dense input, and one more."""
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    if name != "dense":
        dense = request.inputs.add(name="dense", datatype="FP32", shape=[1, 4])
        dense.contents.fp32_contents.extend([0.0] * 4)
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return request


def share_memory(tensors: Any) -> None:
    tensors[0].parameters["shared_memory_region"].string_param = "region"
    tensors[0].parameters["shared_memory_byte_size"].int64_param = 48


def id64(*ids: int) -> NDArray[np.int64]:
    return np.array(ids, np.int64)


def int32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def fp32(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


HUGE = 2**62
LOW, HIGH = -(2**63), 2**63 - 1
# What is asked, the code, and words the message must hold.
CASES: dict[str, tuple[Any, grpc.StatusCode, tuple[str, ...]]] = {
    # Datatypes
    "ids of FP64": (with_tensor("user", datatype="FP64"), INVALID, ("'user'", "FP64", "INT64")),
    "ids of BYTES": (with_tensor("user", datatype="BYTES"), INVALID, ("'user'", "BYTES", "INT64")),
    "ids of INT8": (with_tensor("user", datatype="INT8"), INVALID, ("'user'", "INT8", "INT64")),
    "no datatype": (with_tensor("user", datatype=""), INVALID, ("'user'", "datatype ''", "INT64")),
    "an odd datatype": (with_tensor("user", datatype="int64"), INVALID, ("'user'", "'int64'")),
    "ids of FP32": (with_inputs(user=fp32(3)), INVALID, ("'user'", "INT64 or INT32", "float32")),
    "dense of FP64": (with_tensor("dense", datatype="FP64"), INVALID, ("'dense'", "FP64", "FP32")),
    "dense of INT64": (
        with_inputs(dense=np.zeros((3, 4), np.int64)),
        INVALID,
        ("'dense'", "expected FP32", "int64"),
    ),
    "lengths of FP32": (
        with_inputs(history__lengths=fp32(3)),
        INVALID,
        ("'history.lengths'", "expected INT32 or INT64", "float32"),
    ),
    "weights of INT64": (
        with_inputs(user__weights=id64(1, 1, 1)),
        INVALID,
        ("'user.weights'", "expected FP32", "int64"),
    ),
    # Shapes
    "dense of another width": (
        with_inputs(dense=fp32(3, 5)),
        INVALID,
        ("'dense'", "FP32 [B, 4]", "[3, 5]"),
    ),
    "dense of one dimension": (with_inputs(dense=fp32(12)), INVALID, ("'dense'", "[B, 4]", "[12]")),
    "dense of three": (
        with_inputs(dense=fp32(3, 4, 1)),
        INVALID,
        ("'dense'", "[B, 4]", "[3, 4, 1]"),
    ),
    "dense without dimensions": (with_inputs(dense=fp32()), INVALID, ("'dense'", "[B, 4]", "[]")),
    "ids without dimensions": (
        with_inputs(user=np.array(1)),
        INVALID,
        ("'user'", "[B] or [B, L]", "[]"),
    ),
    "ids of three dimensions": (
        with_inputs(user=np.zeros((3, 1, 1), np.int64)),
        INVALID,
        ("'user'", "[B] or [B, L]", "[3, 1, 1]"),
    ),
    "padded ids that are fewer than their lengths": (
        with_inputs(user=np.zeros((3, 1), np.int64), user__lengths=int32(1, 2, 1)),
        INVALID,
        ("'user.lengths'", "a length of 2", "'user' has 1 id"),
    ),
    "lengths of two dimensions": (
        with_inputs(user__lengths=np.ones((3, 1), np.int32)),
        INVALID,
        ("'user.lengths'", "[B]", "[3, 1]"),
    ),
    "weights of another shape": (
        with_inputs(user__weights=fp32(2)),
        INVALID,
        ("'user.weights'", "[3]", "[2]"),
    ),
    "weights of another rank": (
        with_inputs(user__weights=fp32(3, 1)),
        INVALID,
        ("'user.weights'", "[3]", "[3, 1]"),
    ),
    "a negative size": (with_tensor("user", shape=[-3]), INVALID, ("'user'", "[-3]", "negative")),
    "two negative sizes": (
        with_tensor("dense", shape=[-3, -4]),
        INVALID,
        ("'dense'", "[-3, -4]", "negative"),
    ),
    "the smallest size": (with_tensor("user", shape=[LOW, 0]), INVALID, ("'user'", "negative")),
    "an enormous shape": (
        with_tensor("user", shape=[HUGE, HUGE]),
        INVALID,
        ("'user'", str(HUGE), "got 24"),
    ),
    "a shape whose product wraps around to the right size": (
        with_tensor("user", shape=[HUGE, 4, 0, HUGE], raw=b""),
        INVALID,
        ("'user'", str(HUGE)),
    ),
    "an enormous shape of no elements": (
        with_tensor("user", shape=[HUGE, 0], raw=b""),
        INVALID,
        ("'user'", str(HUGE)),
    ),
    "an enormous dense shape of no elements": (
        with_tensor("dense", shape=[0, HUGE], raw=b""),
        INVALID,
        ("'dense'", str(HUGE)),
    ),
    "more dimensions than arrays may have": (
        with_tensor("user", shape=[3, *[1] * 80]),
        INVALID,
        ("'user'", "dimensions"),
    ),
    # Names
    "dense left out": (with_inputs(dense=None), INVALID, ("'dense'", "missing", "FP32 [B, 4]")),
    "an unknown input": (with_inputs(zebra=id64(1, 2, 3)), INVALID, ("'zebra'", "not one of")),
    "an unknown input, close to one": (
        with_inputs(histroy=id64(1, 2, 3)),
        INVALID,
        ("'histroy'", "did you mean 'history'?"),
    ),
    "an input without a name": (
        edited(lambda r: setattr(tensor_of(r, "user"), "name", "")),
        INVALID,
        ("input ''", "not one of"),
    ),
    "an unknown companion": (
        with_inputs(user__sizes=int32(1, 1, 1)),
        INVALID,
        ("'user.sizes'", "not one of"),
    ),
    "a companion of a dense input": (
        with_inputs(dense__lengths=int32(1, 1, 1)),
        INVALID,
        ("'dense.lengths'", "not one of"),
    ),
    "lengths without their ids": (
        with_inputs(user=None, user__lengths=int32(1, 1, 1)),
        INVALID,
        ("'user.lengths'", "without 'user'"),
    ),
    "weights without their ids": (
        with_inputs(brand=None, brand__weights=fp32(3)),
        INVALID,
        ("'brand.weights'", "without 'brand'"),
    ),
    "an input that comes twice": (
        edited(
            lambda r: (
                r.inputs.append(tensor_of(r, "user")),
                r.raw_input_contents.append(GOOD["user"].tobytes()),
            )
        ),
        INVALID,
        ("'user'", "twice"),
    ),
    "an unknown output": (
        edited(lambda r: r.outputs.add(name="scores")),
        INVALID,
        ("'scores'", "score, labels"),
    ),
    # Contents
    "too few bytes": (
        with_tensor("user", raw=b"\0" * 23),
        INVALID,
        ("'user'", "24 bytes", "got 23"),
    ),
    "too many bytes": (with_tensor("user", raw=b"\0" * 32), INVALID, ("'user'", "24 bytes", "32")),
    "no bytes": (with_tensor("dense", raw=b""), INVALID, ("'dense'", "48 bytes", "got 0")),
    "one raw content too few": (
        edited(lambda r: r.raw_input_contents.pop()),
        INVALID,
        ("raw_input_contents", "8 inputs", "got 7"),
    ),
    "one raw content too many": (
        edited(lambda r: r.raw_input_contents.append(b"")),
        INVALID,
        ("raw_input_contents", "8 inputs", "got 9"),
    ),
    "no contents at all": (
        edited(lambda r: r.ClearField("raw_input_contents")),
        INVALID,
        ("'dense'", "12 elements", "got 0"),
    ),
    "typed contents, too few": (
        typed("user", "INT64", [2], int64_contents=[1]),
        INVALID,
        ("'user'", "2 elements", "got 1"),
    ),
    "typed contents in another datatype's field": (
        typed("user", "INT64", [1], int_contents=[1]),
        INVALID,
        ("'user'", "1 elements", "got 0"),
    ),
    "typed contents of an enormous shape": (
        typed("user", "INT32", [HUGE, HUGE], int_contents=[1]),
        INVALID,
        ("'user'", str(HUGE), "got 1"),
    ),
    "typed BYTES": (
        typed("user", "BYTES", [1], bytes_contents=[b"1"]),
        INVALID,
        ("'user'", "'BYTES'", "INT64"),
    ),
    "shared memory for an input": (
        edited(lambda r: (share_memory(r.inputs), r.raw_input_contents.__delitem__(0))),
        NOT_FOUND,
        ("'dense'", "shared memory"),
    ),
    "shared memory for an output": (
        edited(lambda r: share_memory([r.outputs.add(name="score")])),
        NOT_FOUND,
        ("'score'", "shared memory"),
    ),
    # Lengths
    "a negative length": (
        with_inputs(history=id64(1), history__lengths=int32(2, -1, 0)),
        INVALID,
        ("'history.lengths'", "-1", "0 or more"),
    ),
    "lengths that sum to too little": (
        with_inputs(history=id64(1, 2, 3), history__lengths=int32(1, 0, 1)),
        INVALID,
        ("'history.lengths'", "sum to 2", "3 ids"),
    ),
    "lengths that sum to too much": (
        with_inputs(history=id64(1, 2, 3), history__lengths=int32(3, 3, 0)),
        INVALID,
        ("'history.lengths'", "sum to 6", "3 ids"),
    ),
    "lengths whose sum wraps around to the right one": (
        with_inputs(
            history=id64(1, 2, 3),
            history__lengths=id64(HIGH, HIGH, 5),
        ),
        INVALID,
        ("'history.lengths'", str(HIGH), "3 ids"),
    ),
    "lengths of the other samples' number": (
        with_inputs(history=id64(1, 2), history__lengths=int32(1, 1)),
        INVALID,
        ("'history'", "2 samples", "3"),
    ),
    "no lengths": (
        with_inputs(history=id64(), history__lengths=int32()),
        INVALID,
        ("'history'", "0 samples", "3"),
    ),
    # All at once
    "all at once without lengths": (
        only(sparse__values=id64(1, 2)),
        INVALID,
        ("'sparse.lengths'", "missing"),
    ),
    "all at once without values": (
        only(sparse__lengths=np.ones((5, 3), np.int32)),
        INVALID,
        ("'sparse.values'", "missing"),
    ),
    "all at once, weights alone": (only(sparse__weights=fp32(3)), INVALID, ("'sparse.values'",)),
    "all at once beside a feature": (
        only(
            sparse__values=np.zeros(15, np.int64),
            sparse__lengths=np.ones((5, 3), np.int32),
            user=id64(1, 2, 3),
        ),
        INVALID,
        ("'user'", "beside 'sparse.values'"),
    ),
    "all at once for another number of features": (
        only(sparse__values=np.zeros(12, np.int64), sparse__lengths=np.ones((4, 3), np.int32)),
        INVALID,
        ("'sparse.lengths'", "[5, B]", "[4, 3]"),
    ),
    "all at once, flat lengths": (
        only(sparse__values=np.zeros(15, np.int64), sparse__lengths=np.ones(15, np.int32)),
        INVALID,
        ("'sparse.lengths'", "[5, B]", "[15]"),
    ),
    "all at once, values of two dimensions": (
        only(sparse__values=np.zeros((5, 3), np.int64), sparse__lengths=np.ones((5, 3), np.int32)),
        INVALID,
        ("'sparse.values'", "[N]", "[5, 3]"),
    ),
    "all at once, lengths that sum to too much": (
        only(sparse__values=np.zeros(9, np.int64), sparse__lengths=np.ones((5, 3), np.int32)),
        INVALID,
        ("'sparse.lengths'", "sum to 15", "9 ids"),
    ),
    "all at once, a negative length": (
        only(
            sparse__values=np.zeros(3, np.int64),
            sparse__lengths=np.array([[1, 1, 1], [1, -1, 0], *[[0, 0, 0]] * 3], np.int32),
        ),
        INVALID,
        ("'sparse.lengths'", "-1", "0 or more"),
    ),
    "all at once, weights of another length": (
        only(
            sparse__values=np.zeros(15, np.int64),
            sparse__lengths=np.ones((5, 3), np.int32),
            sparse__weights=fp32(14),
        ),
        INVALID,
        ("'sparse.weights'", "[15]", "[14]"),
    ),
    "all at once for another number of samples": (
        only(sparse__values=np.zeros(10, np.int64), sparse__lengths=np.ones((5, 2), np.int32)),
        INVALID,
        ("'sparse.lengths'", "2 samples", "'dense' has 3"),
    ),
    "all at once, an id outside": (
        only(
            sparse__values=id64(*[0] * 14, 20),
            sparse__lengths=np.ones((5, 3), np.int32),
        ),
        INVALID,
        ("'brand'", "sample 2", "id 20", "0 to 19"),
    ),
    # Ids
    "a negative id": (
        with_inputs(user=id64(0, -1, 2)),
        INVALID,
        ("'user'", "sample 1", "id -1", "0 to 49"),
    ),
    "an id of the number of rows": (
        with_inputs(user=id64(0, 1, 50)),
        INVALID,
        ("'user'", "sample 2", "id 50", "0 to 49"),
    ),
    "the smallest id": (
        with_inputs(brand=id64(LOW, 1, 2)),
        INVALID,
        ("'brand'", "sample 0", f"id {LOW}", "0 to 19"),
    ),
    "the largest id": (
        with_inputs(brand=id64(0, HIGH, 2)),
        INVALID,
        ("'brand'", "sample 1", f"id {HIGH}", "0 to 19"),
    ),
    "an id that is inside as an INT32 only": (
        with_inputs(user=id64(0, 2**32, 1)),
        INVALID,
        ("'user'", "sample 1", f"id {2**32}"),
    ),
    "an INT32 id outside": (
        with_inputs(user=int32(0, 1, -(2**31))),
        INVALID,
        ("'user'", "sample 2", f"id {-(2**31)}"),
    ),
    "an id outside in a jagged bag": (
        with_inputs(user=id64(1, 2, 3, 51), user__lengths=int32(2, 0, 2)),
        INVALID,
        ("'user'", "sample 2", "id 51"),
    ),
    "an id outside in a shared bag": (
        with_inputs(user=np.array([[1, 99]])),
        INVALID,
        ("'user'", "sample 0", "id 99"),
    ),
    # The batch
    "no inputs": (
        service_pb2.ModelInferRequest(model_name=MODEL),
        INVALID,
        ("the request has no inputs",),
    ),
    "no samples": (
        infer_request({"dense": fp32(0, 4), "user": id64()}),
        INVALID,
        ("empty", "'user'", "no samples"),
    ),
    "samples of two numbers": (
        with_inputs(user=id64(1, 2)),
        INVALID,
        ("'user'", "2 samples", "has 3", "or 1"),
    ),
    "no samples of one input": (
        with_inputs(user=id64()),
        INVALID,
        ("'user'", "0 samples", "has 3"),
    ),
    "one sample too many": (
        infer_request(good_inputs(MAX_BATCH + 1)),
        TOO_LARGE,
        (f"{MAX_BATCH + 1} samples", f"at most {MAX_BATCH}"),
    ),
    "too many samples of one input": (
        infer_request({"dense": fp32(1, 4), "user": np.zeros(10**5, np.int64)}),
        TOO_LARGE,
        ("100000 samples", f"at most {MAX_BATCH}"),
    ),
    "samples without ids, which cost a client nothing": (
        with_tensor("user", shape=[2**45, 0], raw=b""),
        TOO_LARGE,
        (f"{2**45} samples", f"at most {MAX_BATCH}"),
    ),
    "a message that is too large": (
        infer_request({"dense": fp32(1, 4), "user": np.zeros((1, 200_000), np.int64)}),
        TOO_LARGE,
        ("message", str(2**20)),
    ),
    # Models
    "an unknown model": (infer_request(GOOD, model="other"), NOT_FOUND, ("'other'",)),
    "no model": (infer_request(GOOD, model=""), NOT_FOUND, ("model ''",)),
    "a model that is a path": (
        infer_request(GOOD, model="../ranker"),
        NOT_FOUND,
        ("'../ranker'",),
    ),
    "an unknown version": (
        edited(lambda r: setattr(r, "model_version", "2")),
        NOT_FOUND,
        (f"'{MODEL}'", "'2'", "version 1"),
    ),
    "a version that is no number": (
        edited(lambda r: setattr(r, "model_version", "latest")),
        NOT_FOUND,
        (f"'{MODEL}'", "'latest'"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_request_is_refused_in_words_and_the_next_one_is_answered(
    target: Target, case: str
) -> None:
    request, code, words = CASES[case]
    with pytest.raises(grpc.RpcError) as refused:
        target.ask(request)
    message = refused.value.details()
    assert refused.value.code() is code, message
    assert [word for word in words if word not in message] == [], message
    target.check_alive()


def test_the_largest_batch_that_is_allowed_is_answered(target: Target) -> None:
    response = target.ask(infer_request(good_inputs(MAX_BATCH)))
    assert scores_of(response)["labels"].shape == (MAX_BATCH, 3)


def test_a_deadline_that_has_passed_is_said_to_have(target: Target) -> None:
    for seconds in (-1.0, -0.01):
        with pytest.raises(grpc.RpcError) as refused:
            target.ask(infer_request(good_inputs(MAX_BATCH)), seconds)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    # gRPC rounds deadlines up to a millisecond, in which an answer may come.
    stub = service_pb2_grpc.GRPCInferenceServiceStub(target.channel)
    for seconds in (0.0, 1e-6) * 10:
        call = stub.ModelInfer.future(infer_request(good_inputs(MAX_BATCH)), timeout=seconds)
        assert call.code() in {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
    target.check_alive()


def test_bytes_that_are_no_message_are_an_invalid_argument(target: Target) -> None:
    send = target.channel.unary_unary(INFER)
    whole = infer_request(GOOD).SerializeToString()
    for data in (b"\xff", b"\xff" * 100, whole[:-1], b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff"):
        with pytest.raises(grpc.RpcError) as refused:
            send(data, timeout=10)
        assert refused.value.code() is INVALID, (data, refused.value.details())
        assert "ModelInferRequest" in refused.value.details()
    with pytest.raises(grpc.RpcError) as refused:
        target.channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")(b"\xff")
    assert refused.value.code() is INVALID
    target.check_alive()


@pytest.mark.parametrize(
    "method",
    [
        "/inference.GRPCInferenceService/ModelInference",
        "/inference.GRPCInferenceService/modelinfer",
        "/inference.Other/ModelInfer",
    ],
)
def test_methods_that_do_not_exist_are_unimplemented(target: Target, method: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        target.channel.unary_unary(method)(infer_request(GOOD).SerializeToString(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    target.check_alive()


def test_a_large_message_to_any_method_is_refused_as_exhausted(target: Target) -> None:
    for method in (INFER, "/inference.GRPCInferenceService/ModelMetadata"):
        for size in (2**20 + 1, 2**23):
            with pytest.raises(grpc.RpcError) as refused:
                target.channel.unary_unary(method)(bytes(size), timeout=10)
            assert refused.value.code() is TOO_LARGE
    target.check_alive()


def test_a_message_that_grows_as_it_is_unpacked_is_refused_as_exhausted(target: Target) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(target.channel)
    gzip = grpc.Compression.Gzip
    large = infer_request({"dense": fp32(1, 4), "user": np.zeros((1, 500_000), np.int64)})
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(large, timeout=10, compression=gzip)
    assert refused.value.code() is TOO_LARGE
    response = stub.ModelInfer(infer_request(GOOD), timeout=10, compression=gzip)
    assert np.array_equal(scores_of(response)["labels"], target.expected["labels"])


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500,
        b"",
    ],
    ids=["HTTP/1.1", "a preface and nonsense", "nothing"],
)
def test_connections_that_speak_no_grpc_harm_nobody(target: Target, data: bytes) -> None:
    host, port = target.server.grpc_url.split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(data)
    target.check_alive()


def test_clients_that_leave_in_the_middle_harm_nobody(target: Target) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(target.channel)
    calls = [stub.ModelInfer.future(infer_request(good_inputs(MAX_BATCH))) for _ in range(100)]
    for call in calls:
        call.cancel()
    for call in calls:
        with suppress(grpc.FutureCancelledError):
            assert call.exception() is None
    target.check_alive()


def test_errors_of_many_clients_do_not_mix(target: Target) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(target.channel)
    started = time.monotonic()
    calls = []
    for number in range(200):
        bad = number % 2 == 1
        request = with_inputs(user=id64(0, 50 + number, 1)) if bad else infer_request(GOOD)
        calls.append((number, bad, stub.ModelInfer.future(request, timeout=30)))
    for number, bad, call in calls:
        if bad:
            assert call.code() is INVALID and f"id {50 + number} " in call.details()
        else:
            got = scores_of(call.result())
            # Batch mates change the size of the matrix products, and with it their rounding.
            assert np.allclose(got["labels"], target.expected["labels"], rtol=0, atol=1e-6)
    assert time.monotonic() - started < 30


# ---------------------------------------------------------------- mutations

NAMES = st.one_of(
    st.sampled_from([*GOOD, "user.lengths", "user.weights", "item.weights", "dense.lengths"]),
    st.sampled_from(["sparse.values", "sparse.lengths", "sparse.weights", "score", "usr", ""]),
    st.text(max_size=12),
)
INT64 = st.integers(LOW, HIGH)
SIZES = st.one_of(st.integers(0, 6), st.sampled_from([-1, LOW, 2**45, 2**61, 2**62, HIGH]), INT64)
SHAPES = st.lists(SIZES, max_size=5)
CONTENTS = st.one_of(
    st.binary(max_size=64),
    st.lists(INT64, max_size=6).map(lambda ids: np.array(ids, "<i8").tobytes()),
    st.lists(st.integers(-3, 60), max_size=6).map(lambda ids: np.array(ids, "<i4").tobytes()),
    st.lists(st.floats(width=32), max_size=12).map(lambda x: np.array(x, "<f4").tobytes()),
)
DATATYPE = st.one_of(
    st.sampled_from(["INT64", "INT32", "FP32", "FP64", "BYTES", "BOOL", "FP16", "BF16", ""]),
    st.text(max_size=5),
)


Draw = Callable[[st.SearchStrategy[Any]], Any]


def _pick(draw: Draw, items: Any) -> int:
    return draw(st.integers(0, len(items) - 1))


def _add_input(draw: Draw, request: Any) -> None:
    tensor = request.inputs.add(name=draw(NAMES), datatype=draw(DATATYPE))
    tensor.shape.extend(draw(SHAPES))
    request.raw_input_contents.append(draw(CONTENTS))


def _add_output(draw: Draw, request: Any) -> None:
    output = request.outputs.add(name=draw(NAMES))
    output.parameters[draw(st.text(max_size=5))].int64_param = draw(INT64)


def _add_parameter(draw: Draw, request: Any) -> None:
    request.parameters[draw(st.text(max_size=9))].int64_param = draw(INT64)


def _change_names(draw: Draw, request: Any) -> None:
    field = draw(st.sampled_from(["model_name", "model_version", "id"]))
    setattr(request, field, draw(st.one_of(st.just("1"), st.text(max_size=12))))


def _change_contents(draw: Draw, request: Any) -> None:
    if request.raw_input_contents:
        position = _pick(draw, request.raw_input_contents)
        if draw(st.booleans()):
            request.raw_input_contents[position] = draw(CONTENTS)
        else:
            del request.raw_input_contents[position]


def _drop_contents(draw: Draw, request: Any) -> None:
    request.ClearField("raw_input_contents")


def _rename(draw: Draw, request: Any) -> None:
    request.inputs[_pick(draw, request.inputs)].name = draw(NAMES)


def _retype(draw: Draw, request: Any) -> None:
    request.inputs[_pick(draw, request.inputs)].datatype = draw(DATATYPE)


def _reshape(draw: Draw, request: Any) -> None:
    request.inputs[_pick(draw, request.inputs)].shape[:] = draw(SHAPES)


def _drop_input(draw: Draw, request: Any) -> None:
    position = _pick(draw, request.inputs)
    del request.inputs[position]
    if position < len(request.raw_input_contents):
        del request.raw_input_contents[position]


def _repeat_input(draw: Draw, request: Any) -> None:
    position = _pick(draw, request.inputs)
    request.inputs.append(request.inputs[position])
    if position < len(request.raw_input_contents):
        request.raw_input_contents.append(request.raw_input_contents[position])


def _add_typed(draw: Draw, request: Any) -> None:
    contents = request.inputs[_pick(draw, request.inputs)].contents
    contents.int64_contents.extend(draw(st.lists(INT64, max_size=4)))
    contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=4)))
    contents.int_contents.extend(draw(st.lists(st.integers(-5, 99), max_size=4)))


def _resize(draw: Draw, request: Any) -> None:
    # Bytes that fit the shape: deeper checks are reached.
    position = _pick(draw, request.inputs)
    if position < len(request.raw_input_contents):
        tensor = request.inputs[position]
        tensor.shape[:] = draw(st.lists(st.integers(0, 4), max_size=3))
        size = {"INT64": 8}.get(tensor.datatype, 4) * math.prod(tensor.shape)
        request.raw_input_contents[position] = draw(st.binary(min_size=size, max_size=size))


EDITS = (_add_input, _add_output, _add_parameter, _change_names, _change_contents, _drop_contents)
# Of one of the inputs, which there must be.
INPUT_EDITS = (_rename, _retype, _reshape, _drop_input, _repeat_input, _add_typed, _resize)


def _mutate(draw: Draw, request: Any) -> None:
    """One random edit of a field."""
    edit = draw(st.sampled_from((*EDITS, *INPUT_EDITS) if request.inputs else EDITS))
    edit(draw, request)


def _mutate_bytes(draw: Draw, message: bytes) -> bytes:
    changed = bytearray(message)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        stop = draw(st.integers(start, min(len(changed), start + 8)))
        changed[start:stop] = draw(st.binary(max_size=8))
    return bytes(changed)


def _check_answer(target: Target, message: bytes) -> None:
    send = target.channel.unary_unary(
        INFER, response_deserializer=service_pb2.ModelInferResponse.FromString
    )
    call = send.future(message, timeout=30)
    if call.code() is not grpc.StatusCode.OK:
        assert call.code() in {INVALID, NOT_FOUND, TOO_LARGE}, (call.code(), call.details())
        assert call.details()
        return
    response = call.result()
    assert response.model_name == MODEL
    for output, scores in zip(response.outputs, scores_of(response).values(), strict=True):
        assert list(scores.shape) == list(output.shape) and len(scores) <= MAX_BATCH


FUZZ = settings(
    max_examples=250,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(data=st.data())
def test_a_request_with_random_edits_is_answered_or_refused_never_failed(
    target: Target, data: st.DataObject
) -> None:
    request = infer_request(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        _mutate(data.draw, request)
    _check_answer(target, request.SerializeToString())
    target.check_alive()


@FUZZ
@given(data=st.data())
def test_a_message_with_random_bytes_is_answered_or_refused_never_failed(
    target: Target, data: st.DataObject
) -> None:
    message = infer_request({n: GOOD[n] for n in ("dense", "user")}).SerializeToString()
    if data.draw(st.booleans()):
        message = data.draw(st.binary(max_size=80))
    else:
        message = _mutate_bytes(data.draw, message)
    _check_answer(target, message)
    target.check_alive()
