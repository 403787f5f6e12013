"""Messages of calls that are no predict calls: nobody's before the token, and never large."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import grpc
import pytest

from tests.support.servers import Ranker, RunningServer, running_server

TOKEN = "0123456789abcdef-admin"  # noqa: S105
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
LIVE = "/inference.GRPCInferenceService/ServerLive"
UNREADABLE = b"\x22\xff\xff\xff\xff"
# A field that no message has.
LARGE = b"\x7a\x81\x80\x40" + bytes(2**20 + 1)


@pytest.fixture(scope="module")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("control")
    tokens = folder / "tokens"
    tokens.write_text(f"{TOKEN} admin # operators\n")
    tokens.chmod(0o600)
    options = ("--tokens-file", tokens)
    with running_server(ranker.repository, folder / "log", *options) as running:
        yield running


def refusal(
    server: RunningServer, method: str, message: bytes, *, token: str = TOKEN
) -> grpc.RpcError:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(method)(message, timeout=30, metadata=metadata)
    return refused.value


def test_a_message_is_read_after_the_token(server: RunningServer) -> None:
    assert refusal(server, LOAD, UNREADABLE, token="").code() is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(server, LOAD, LARGE, token="").code() is grpc.StatusCode.UNAUTHENTICATED
    found = refusal(server, LOAD, UNREADABLE)
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT and "unreadable" in found.details()


@pytest.mark.parametrize("method", [LOAD, LIVE])
def test_a_large_message_is_not_read(server: RunningServer, method: str) -> None:
    found = refusal(server, method, LARGE)
    assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "1048576" in found.details()


def test_a_large_body_of_a_control_call_is_refused_over_rest(server: RunningServer) -> None:
    parts = urlsplit(server.metrics_url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)) as client:
        body = json.dumps({"parameters": {"x": "y" * 2**20}})
        client.request("POST", "/v2/repository/index", body, {"Authorization": f"Bearer {TOKEN}"})
        response = client.getresponse()
        assert response.status == 429 and b"1048576" in response.read()
