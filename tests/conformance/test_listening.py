"""Addresses, ALPN and health probes, on a real server."""

import socket
import ssl
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.support.http2_peer import Peer
from tests.support.servers import Ranker, RunningServer, good_inputs, infer_request, running_server
from tests.support.tls import IssuedFiles

SECONDS = 60.0
MESSAGE = infer_request(good_inputs(2)).SerializeToString()


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_a_host_is_listened_on_by_name_and_ipv6(ranker: Ranker, tmp_path: Path, host: str) -> None:
    options = ("--host", host)
    with running_server(ranker.repository, tmp_path / "log", *options) as running:
        assert running.grpc_url.rpartition(":")[0] == ("[::1]" if host == "::1" else host)
        with grpc.insecure_channel(running.grpc_url) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with urlopen(running.metrics_url, timeout=SECONDS) as page:  # noqa: S310 - our own server
            assert page.status == 200


@pytest.mark.parametrize("running", ["tls"], indirect=True)
def test_tls_without_h2_in_alpn_ends_at_once(running: tuple[RunningServer, IssuedFiles]) -> None:
    server, files = running
    host, _, port = server.grpc_url.rpartition(":")
    for offered in ((), ("http/1.1",), ("h3", "spdy/3")):
        plain = socket.create_connection((host, int(port)), SECONDS)
        # Closed, by an alert or without one: what it must not do is to wait.
        with plain:
            try:
                with files.context(*offered).wrap_socket(plain, server_hostname=host) as client:
                    assert client.recv(1) == b""
            except ssl.SSLError:
                pass
    with Peer(server.grpc_url, tls=files.context("http/1.1", "h2")) as peer:
        assert peer.call(MESSAGE).status() == "0"


def test_probes_and_reflection_are_answered_by_every_worker(ranker: Ranker, tmp_path: Path) -> None:
    options = ("--workers", 2)
    serving = health_pb2.HealthCheckResponse.SERVING
    unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    with running_server(ranker.repository, tmp_path / "log", *options) as running:
        for _ in range(6):
            local = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(running.grpc_url, local) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                for service, status in (("", serving), ("no.such.Service", unknown)):
                    request = health_pb2.HealthCheckRequest(service=service)
                    watch = health.Watch(request, timeout=SECONDS)
                    assert next(watch).status == status
                    watch.cancel()
                # More watches than the transport has threads.
                watches = [
                    health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
                    for _ in range(10)
                ]
                assert [next(watch).status for watch in watches] == [serving] * 10
                check = health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
                assert check.status == serving
                request = health_pb2.HealthCheckRequest(service="no.such.Service")
                with pytest.raises(grpc.RpcError) as refused:
                    health.Check(request, timeout=SECONDS)
                assert refused.value.code() is grpc.StatusCode.NOT_FOUND
                for watch in watches:
                    watch.cancel()
                reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
                ask = reflection_pb2.ServerReflectionRequest
                asked = [ask(list_services=""), ask(file_containing_symbol="no.such.Service")]
                listed, missing = reflection.ServerReflectionInfo(iter(asked), timeout=SECONDS)
                assert len(listed.list_services_response.service) >= 3
                assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
