"""Messages of calls that are no predict calls: nobody's before the token, and never large."""

import json

import grpc
import pytest

from tests.attacks.conftest import ADMIN_TOKEN
from tests.attacks.http_client import post
from tests.support.servers import RunningServer

LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
LIVE = "/inference.GRPCInferenceService/ServerLive"
UNREADABLE = b"\x22\xff\xff\xff\xff"
# A field that no message has.
LARGE = b"\x7a\x81\x80\x40" + bytes(2**20 + 1)


def refusal(
    guarded: RunningServer, method: str, message: bytes, *, token: str = ADMIN_TOKEN
) -> grpc.RpcError:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with (
        grpc.insecure_channel(guarded.grpc_url) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(method)(message, timeout=30, metadata=metadata)
    return refused.value


def test_a_message_is_read_after_the_token(guarded: RunningServer) -> None:
    assert refusal(guarded, LOAD, UNREADABLE, token="").code() is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(guarded, LOAD, LARGE, token="").code() is grpc.StatusCode.UNAUTHENTICATED
    found = refusal(guarded, LOAD, UNREADABLE)
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT and "unreadable" in found.details()


@pytest.mark.parametrize("method", [LOAD, LIVE])
def test_a_large_message_is_not_read(guarded: RunningServer, method: str) -> None:
    found = refusal(guarded, method, LARGE)
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "1048576" in found.details()


def test_a_large_body_of_a_control_call_is_refused_over_rest(guarded: RunningServer) -> None:
    body = json.dumps({"parameters": {"x": "y" * 2**20}}).encode()
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    status, answer = post(guarded, body, headers, "/v2/repository/index")
    assert status == 429 and "1048576" in answer["error"]
