"""A server's log under clients that would fill it, or have it write their neighbours' tokens."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest

from tests.attacks.raw_http2 import call, connect
from tests.support.servers import (
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
)
from tests.support.waiting import until

TOKEN = "s3cr3t-0123456789abcdef"  # noqa: S105
SECRET = b"s3cr3t"
METHODS = (
    b"/inference.GRPCInferenceService/ModelInfer",
    b"/inference.GRPCInferenceService/ServerLive",
    b"/grpc.health.v1.Health/Check",
    b"/s3cr3t/\xff",
)
# What gRPC, its C code or ours may stumble over.
HEADERS = [
    (b"authorization", b"Bearer s3cr3t-0123456789abcdef\xff"),
    (b"x-other", b"s3cr3t\xff" * 400),
    (b"x-bin", b"!!!s3cr3t!!!"),
    (b"grpc-timeout", b"s3cr3t\xff"),
    (b"grpc-encoding", b"s3cr3t\xff"),
    (b"grpc-trace-bin", b"s3cr3t"),
    (b"te", b"s3cr3t"),
    (b"user-agent", b"s3cr3t\xff"),
    (b"traceparent", b"s3cr3t\xff"),
    (b"x-s3cr3t\xff", b"s3cr3t"),
]
CALLS = 200
# What the server says of itself, and of each kind of line one a second.
MOST_BYTES = 100_000


@pytest.fixture
def server(ranker: Ranker, tmp_path: Path) -> Iterator[RunningServer]:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} predict # ranking\n")
    tokens.chmod(0o600)
    options = ("--tokens-file", tokens)
    # As users start it: gRPC reads its environment when it is imported.
    with running_server(ranker.repository, tmp_path / "log", *options, forked=False) as running:
        yield running


def test_no_header_is_logged_and_no_line_comes_often(server: RunningServer) -> None:
    for method in METHODS:
        for header in HEADERS:
            with closing(connect(server.grpc_url)) as client:
                try:
                    for number in range(CALLS):
                        client.sendall(call(method, 2 * number + 1, [header]))
                except ConnectionError:
                    pass  # it is not listened to any more
    parts = urlsplit(server.metrics_url)
    for line in (
        b"GET /s3cr3t\xff HTTP/1.1\r\n",
        b"s3cr3t\xff\r\n",
        b"GET / HTTP/1.1\r\ns3cr3t\r\n",
    ):
        for name, value in HEADERS:
            with closing(
                socket.create_connection((str(parts.hostname), parts.port or 0))
            ) as client:
                client.sendall(line + name + b": " + value + b"\r\n\r\n")
    # What was sent has been read, or refused, when others are answered again.
    until(lambda: _answers(server), "the server answers")
    text = server.log.read_bytes()
    assert SECRET not in text, text[:3000]
    assert b"\\xff" not in text
    assert len(text) < MOST_BYTES


def _answers(server: RunningServer) -> bool:
    with server.stub() as stub:
        metadata = (("authorization", f"Bearer {TOKEN}"),)
        try:
            stub.ModelInfer(infer_request(good_inputs(1)), timeout=20, metadata=metadata)
        except grpc.RpcError:
            return False
    return True


def test_words_of_a_megabyte_are_not_answered_nor_logged(server: RunningServer) -> None:

    metadata = (("authorization", f"Bearer {TOKEN}"),)
    long = "s3cr3t" * 200_000
    with server.stub() as stub:
        for request in (
            infer_request(good_inputs(1), model=long),
            infer_request({long: good_inputs(1)["user"]}),
            infer_request({}, request_id=long),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request, timeout=60, metadata=metadata)
            assert len(refused.value.details()) < 1000
            assert refused.value.code() in {
                grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
            }  # fmt: skip
    assert len(server.log.read_bytes()) < MOST_BYTES and SECRET not in server.log.read_bytes()
