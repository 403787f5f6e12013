"""A server on Unix sockets, with its users' clients."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.conformance.test_http2_tools import run
from tests.support.http2_peer import INFER, framed
from tests.support.servers import (
    MODEL,
    Command,
    Ranker,
    check_bits,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.tls import issue_files

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """The paths of a server's sockets, and it."""

    grpc: str
    http: str
    admin: str
    running: Any = None

    def options(self) -> tuple[str, ...]:
        return (
            *("--unix-socket", self.grpc, "--http-unix-socket", self.http),
            *("--admin-address", f"unix:{self.admin}"),
        )

    def files(self) -> list[bool]:
        return [Path(path).is_socket() for path in (self.grpc, self.http, self.admin)]


def sockets_in(folder: Path) -> Sockets:
    return Sockets(str(folder / "g"), str(folder / "h"), str(folder / "a"))


@pytest.fixture(scope="module")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sockets]:
    folder = tmp_path_factory.mktemp("u")
    sockets = sockets_in(folder)
    log = folder / "log"
    options = ("--workers", 2, *sockets.options())
    with running_server(ranker.repository, log, *options) as running:
        yield Sockets(sockets.grpc, sockets.http, sockets.admin, running)
        assert sockets.files() == [True] * 3
    assert "internal error" not in log.read_text()
    assert sockets.files() == [False] * 3


def test_the_ready_line_says_where_it_answers(server: Sockets) -> None:
    ready = server.running.ready
    assert ready["unix_url"] == f"unix:{server.grpc}"
    assert ready["http_unix_socket"] == server.http
    assert ready["admin_url"] == f"unix:{server.admin}"


def test_grpc_is_answered_there_and_on_the_port(server: Sockets, ranker: Ranker) -> None:
    for address in (f"unix:{server.grpc}", f"unix://{server.grpc}", server.running.grpc_url):
        local = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, local) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for batch in (1, 3):
                request = infer_request(good_inputs(batch))
                answer = stub.ModelInfer(request, timeout=SECONDS)
                check_bits(scores_of(answer), ranker.predict(good_inputs(batch)))
            (streamed,) = stub.ModelStreamInfer(iter([request]), timeout=SECONDS)
            check_bits(scores_of(streamed.infer_response), ranker.predict(good_inputs(3)))


def test_curl_is_answered_over_http_and_http2(server: Sockets, tmp_path: Path) -> None:
    for path, words in (("/ready", "ready\n"), ("/live", "live\n")):
        done = run("curl", "-sS", "--unix-socket", server.http, f"http://localhost{path}")
        assert done.stdout == words, done.stderr
    done = run("curl", "-sS", "--unix-socket", server.http, f"http://x/v2/models/{MODEL}")
    assert json.loads(done.stdout)["name"] == MODEL
    body = tmp_path / "body"
    body.write_bytes(framed(infer_request(good_inputs(2)).SerializeToString()))
    called = run(
        *("curl", "-sS", "--http2-prior-knowledge", "--unix-socket", server.grpc),
        *("-H", "content-type: application/grpc", "-H", "te: trailers", "--include"),
        *("--data-binary", f"@{body}", "--output", tmp_path / "answer"),
        *("--dump-header", "-", f"http://localhost{INFER}"),
    )
    assert "HTTP/2 200" in called.stdout and "grpc-status: 0" in called.stdout, called.stderr


def test_the_admin_socket_alone_answers_what_changes_the_server(server: Sockets) -> None:
    load = service_pb2.RepositoryModelLoadRequest(model_name=MODEL)
    infer = infer_request(good_inputs(1))
    good, denied = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
    for path, codes in ((server.grpc, [denied, good]), (server.admin, [good, denied])):
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            calls = ((stub.RepositoryModelLoad, load), (stub.ModelInfer, infer))
            assert [one.future(sent, timeout=SECONDS).code() for one, sent in calls] == codes


def test_a_client_of_a_socket_is_known_by_its_user(ranker: Ranker, tmp_path: Path) -> None:
    sockets = sockets_in(tmp_path)
    options = ("--rate-limit", 0.001, "--rate-burst", 2)
    with (
        running_server(ranker.repository, tmp_path / "log", *options, *sockets.options()),
        grpc.insecure_channel(f"unix:{sockets.grpc}") as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = infer_request(good_inputs(1))
        stub.ModelInfer(request, timeout=SECONDS)
        # One of the two is HTTP's, which counts with gRPC's.
        done = run("curl", "-sS", "--unix-socket", sockets.http, "http://x/v2/models/stats")
        assert json.loads(done.stdout)["model_stats"]
        refused = stub.ModelInfer.future(request, timeout=SECONDS)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"expected fewer from 'uid {os.getuid()}'" in refused.details()


def test_tls_is_spoken_there_too(ranker: Ranker, tmp_path: Path) -> None:
    sockets, files = sockets_in(tmp_path), issue_files(tmp_path)
    options = (*files.options(), *sockets.options())
    with running_server(ranker.repository, tmp_path / "log", *options):
        credentials = grpc.ssl_channel_credentials(Path(files.ca).read_bytes())
        name = [("grpc.ssl_target_name_override", "127.0.0.1")]
        with grpc.secure_channel(f"unix:{sockets.grpc}", credentials, name) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS).live
        done = run(
            *("curl", "-sS", "--unix-socket", sockets.http, "--cacert", files.ca),
            "https://127.0.0.1/ready",
        )
        assert done.stdout == "ready\n", done.stderr


def test_contradictory_settings_of_sockets_are_refused(
    ranker: Ranker, tmp_path: Path, sharded_infer: Command
) -> None:
    words = ("serve", "-r", ranker.repository, "--port", 0, "--http-port", 0)
    (tmp_path / "s").write_text("words")
    for option in ("--unix-socket", "--http-unix-socket"):
        done = sharded_infer(*words, option, tmp_path / "s")
        done.refused(f"socket {tmp_path / 's'} cannot be had: the file there is no socket")
    done = sharded_infer(*words, "--unix-socket", "/x", "--admin-address", "unix:/x")
    done.refused("expected a path for each, got one twice: /x, /x")
    done = sharded_infer(*words, "--admin-address", "unix")
    done.refused("admin_address: expected unix:PATH, or HOST:PORT")
