"""Bodies and messages that nobody asked for or may send, or that are too many to be held."""

import json
import socket
from contextlib import ExitStack

import grpc
import pytest

from tests.attacks.attacker import MIB
from tests.attacks.conftest import ADMIN_TOKEN, PREDICT_TOKEN
from tests.attacks.http_client import INFER, connect, post
from tests.support.server_processes import resident_bytes
from tests.support.servers import RunningServer
from tests.support.waiting import until

BODY = 62 * MIB
LENGTH = f"Content-Length: {BODY}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
# What an attacker without a token asks, and what is answered.
UNREAD = {
    "a probe": ("GET /live", LENGTH, 200),
    "a probe in chunks": ("GET /live", CHUNKED, 200),
    "a probe of the protocol": ("GET /v2/health/live", LENGTH, 200),
    "no path": ("PUT /nowhere", LENGTH, 401),
    "no path of the protocol": ("POST /v2/nowhere", CHUNKED, 404),
    "a predict call": (f"POST {INFER}", LENGTH, 401),
    "a control call": ("POST /v2/repository/index", CHUNKED, 401),
    "a control call that takes no body": ("POST /v2/systemsharedmemory/unregister", LENGTH, 401),
    "every method": ("OPTIONS *", LENGTH, 401),
}


def resident(server: RunningServer) -> int:
    return resident_bytes(server.process.pid)


def sent_of(client: socket.socket, size: int, *, chunked: bool = False) -> int:
    """How many bytes of a body go out before the server ends the connection."""
    part = bytes(MIB // 4)
    if chunked:
        part = b"%x\r\n" % len(part) + part + b"\r\n"
    sent = 0
    try:
        while sent < size:
            sent += client.send(part[: size - sent])
    except ConnectionError:
        pass
    return sent


def status_of(client: socket.socket) -> int:
    came = b""
    while not came.endswith(b"\r\n\r\n"):
        came += client.recv(1)
    return int(came.split()[1])


@pytest.mark.parametrize("case", UNREAD)
def test_a_body_that_nobody_asks_for_is_not_taken_in(guarded: RunningServer, case: str) -> None:
    line, headers, status = UNREAD[case]
    head = f"{line} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()
    before = resident(guarded)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(guarded)) for _ in range(10)]
        for client in clients:
            client.sendall(head)
            # What lies in buffers of the system, and what is skipped so that answers are read.
            assert sent_of(client, BODY, chunked=headers == CHUNKED) < BODY / 2
            assert resident(guarded) - before < 64 * MIB
        with connect(guarded) as client:
            client.sendall(head)
            assert status_of(client) == status


@pytest.mark.parametrize(("line", "status"), [("GET /live", 200), (f"POST {INFER}", 401)])
def test_who_sends_more_or_asks_is_answered(guarded: RunningServer, line: str, status: int) -> None:
    little = f"Content-Length: {MIB // 2}\r\n\r\n".encode() + bytes(MIB // 2)
    asks = f"{LENGTH}Expect: 100-continue\r\n\r\n".encode()
    for rest in (little, asks):
        with connect(guarded) as client:
            client.sendall(f"{line} HTTP/1.1\r\nHost: x\r\n".encode() + rest)
            assert status_of(client) == status
            if rest is little:
                while client.recv(65536):
                    pass


def test_bodies_are_bounded_together_and_their_memory_comes_back(guarded: RunningServer) -> None:
    before = resident(guarded)
    token = f"Authorization: Bearer {PREDICT_TOKEN}\r\n"
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{token}{LENGTH}\r\n"
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(guarded)) for _ in range(6)]
        # The last bytes never come: all are held, but for those that are too many.
        sent = []
        for client in clients:
            client.sendall(head.encode())
            sent.append(sent_of(client, BODY - 1))
        assert sent[:4] == [BODY - 1] * 4 and sent[-1] < BODY - 1
        assert status_of(clients[-1]) == 429
        assert resident(guarded) - before < 400 * MIB
    until(lambda: resident(guarded) - before < 100 * MIB, "the memory is given back")


LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
LIVE = "/inference.GRPCInferenceService/ServerLive"
UNREADABLE = b"\x22\xff\xff\xff\xff"
# A field that no message has.
LARGE = b"\x7a\x81\x80\x40" + bytes(MIB + 1)


UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
CONTROL: dict[str, tuple[str, bytes, str, grpc.StatusCode, str]] = {
    "unreadable, no token": (LOAD, UNREADABLE, "", UNAUTHENTICATED, ""),
    "large, no token": (LOAD, LARGE, "", UNAUTHENTICATED, ""),
    "unreadable": (LOAD, UNREADABLE, ADMIN_TOKEN, grpc.StatusCode.INVALID_ARGUMENT, "unreadable"),
    "a large load": (LOAD, LARGE, ADMIN_TOKEN, grpc.StatusCode.RESOURCE_EXHAUSTED, "1048576"),
    "a large probe": (LIVE, LARGE, ADMIN_TOKEN, grpc.StatusCode.RESOURCE_EXHAUSTED, "1048576"),
}


@pytest.mark.parametrize("case", CONTROL)
def test_a_control_message_is_read_after_the_token(guarded: RunningServer, case: str) -> None:
    method, message, token, code, words = CONTROL[case]
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with (
        grpc.insecure_channel(guarded.grpc_url) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(method)(message, timeout=30, metadata=metadata)
    assert refused.value.code() is code and words in refused.value.details()


def test_a_large_body_of_a_control_call_is_refused_over_rest(guarded: RunningServer) -> None:
    body = json.dumps({"parameters": {"x": "y" * MIB}}).encode()
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    status, answer = post(guarded, body, headers, "/v2/repository/index")
    assert status == 429 and "1048576" in answer["error"]
