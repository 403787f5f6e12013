"""Each setting of security shows its refusal, on a real server as users start it."""

import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import grpc
import numpy as np
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sharded_infer.v1 import predictor_pb2, predictor_pb2_grpc
from tests.support import server_pages
from tests.support.server_processes import free_port
from tests.support.servers import (
    MODEL,
    Command,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
)
from tests.support.tls import IssuedFiles, issue_files
from tests.support.waiting import until

PREDICT, ADMIN, METRICS = "predict-0123456789ab", "admin-0123456789abcd", "metrics-0123456789ab"
TOKENS = f"""
# token scopes # name
{PREDICT} predict # caller
{ADMIN} predict,admin # operator
{METRICS} metrics
"""
EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is refused
Code = grpc.StatusCode
STREAM = "ModelStreamInfer"
LOAD = service_pb2.RepositoryModelLoadRequest(model_name=MODEL)
UNLOAD = service_pb2.RepositoryModelUnloadRequest(model_name=MODEL)


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (("authorization", f"Bearer {token}"),)


def code_of(call: Callable[[], object]) -> tuple[Code, str]:
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return Code.OK, ""


def codes_of(call: Callable[..., object], message: object, *tokens: str | None) -> list[Code]:
    return [code_of(partial(call, message, metadata=bearer(t), timeout=30))[0] for t in tokens]


def streaming(call: Callable[..., Any]) -> Callable[..., object]:
    """A call with a stream of one message, as one that is given the message."""
    return lambda message, **more: list(call(iter([message]), **more))


def infer(stub: Any, token: str | None = None, **inputs: Any) -> Any:
    request = infer_request({**good_inputs(3), **inputs})
    return stub.ModelInfer(request, metadata=bearer(token), timeout=30)


def fetch(
    url: str, token: str | None = None, data: bytes | None = None, tls: Any = None
) -> tuple[int, str, Any]:
    return server_pages.fetch(url, data, dict(bearer(token)), tls=tls)


def private_file(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def guarded(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for tokens, holds small limits, and lets clients load models."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = private_file(folder / "tokens", TOKENS)
    options = ("--tokens-file", tokens, "--max-ids", 100, "--max-inputs", 12)
    with running_server(ranker.repository, folder / "log", *options) as running:
        yield running
    assert "internal error" not in (folder / "log").read_text()


@pytest.fixture
def stub(guarded: RunningServer) -> Iterator[Any]:
    with guarded.stub() as stub:
        yield stub


@pytest.mark.parametrize(
    ("method", "message", "lesser", "token"),
    [
        ("ModelInfer", infer_request(good_inputs(3)), METRICS, PREDICT),
        (STREAM, infer_request(good_inputs(3)), METRICS, PREDICT),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest(), PREDICT, METRICS),
        ("ServerMetadata", service_pb2.ServerMetadataRequest(), None, METRICS),
        ("LogSettings", service_pb2.LogSettingsRequest(), PREDICT, ADMIN),
        ("TraceSetting", service_pb2.TraceSettingRequest(), PREDICT, ADMIN),
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest(), PREDICT, ADMIN),
        ("RepositoryModelLoad", LOAD, PREDICT, ADMIN),
        ("RepositoryModelUnload", UNLOAD, PREDICT, ADMIN),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "",
)
def test_a_call_needs_a_token_with_its_scope(
    stub: Any, method: str, message: object, lesser: str | None, token: str
) -> None:
    call = getattr(stub, method)
    if method == STREAM:
        call = streaming(call)
    *refused, answered = codes_of(call, message, None, "no-such-token-at-all", token)
    assert refused == [Code.UNAUTHENTICATED] * 2
    assert answered not in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)
    if lesser is not None:
        code, words = code_of(partial(call, message, metadata=bearer(lesser), timeout=30))
        assert code is Code.PERMISSION_DENIED and "scope" in words and lesser not in words


def test_our_own_predict_call_and_reflection_need_a_token_and_probes_none(
    guarded: RunningServer, stub: Any
) -> None:
    assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=30).ready
    with grpc.insecure_channel(guarded.grpc_url) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=30).status == 1
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed = reflection_pb2.ServerReflectionRequest(list_services="")
        call = streaming(reflection.ServerReflectionInfo)
        assert codes_of(call, listed, None, PREDICT) == [Code.UNAUTHENTICATED, Code.OK]
        predict = predictor_pb2_grpc.PredictorStub(channel).Predict
        # It holds no inputs.
        empty = predictor_pb2.PredictRequest(model=MODEL)
        assert codes_of(predict, empty, None, METRICS, PREDICT) == [
            Code.UNAUTHENTICATED,
            Code.PERMISSION_DENIED,
            Code.INVALID_ARGUMENT,
        ]


BODY = b'{"inputs": [{"name": "dense", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}]}'


@pytest.mark.parametrize(
    ("path", "data", "wanted"),
    [
        ("/ready", None, ""),
        ("/live", None, ""),
        ("/openapi.json", None, ""),
        ("/v2/health/ready", None, ""),
        (f"/v2/models/{MODEL}", None, PREDICT),
        ("/metrics", None, METRICS),
        ("/", None, METRICS),
        ("/api/live", None, METRICS),
        ("/dashboard/live.js", None, METRICS),
        (f"/v2/models/{MODEL}/stats", None, METRICS),
        (f"/v2/models/{MODEL}/infer", BODY, PREDICT),
        (f"/v2/models/{MODEL}/versions/1/infer", BODY, PREDICT),
        ("/v2/logging", None, ADMIN),
        (f"/v2/repository/models/{MODEL}/load", b"{}", ADMIN),
        ("/v2/systemsharedmemory/status", None, ADMIN),
    ],
)
def test_http_asks_for_the_same_tokens(
    guarded: RunningServer, path: str, data: bytes | None, wanted: str
) -> None:
    url = guarded.http_url + path
    if not wanted:
        assert fetch(url, None, data)[0] == 200
        return
    status, words, headers = fetch(url, None, data)
    assert status == 401 and headers["WWW-Authenticate"] == "Bearer"
    assert "authorization" in words
    assert fetch(url, "no-such-token-at-all", data)[0] == 401
    assert fetch(url, wanted, data)[0] not in {401, 403}
    if path != f"/v2/models/{MODEL}":
        lesser = PREDICT if wanted == METRICS else METRICS
        status, words, _ = fetch(url, lesser, data)
        assert status == 403 and lesser not in words


def test_http_calls_that_are_not_let_in_are_counted(guarded: RunningServer) -> None:
    def counted() -> float:
        lines = fetch(guarded.metrics_url, METRICS)[1].splitlines()
        begin = 'sharded_infer_requests_total{code="PERMISSION_DENIED"'
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(begin))

    before = counted()
    url = f"{guarded.http_url}/v2/models/{MODEL}/infer"
    assert fetch(url, METRICS, BODY)[0] == 403
    until(lambda: counted() == before + 1, "it is counted")


def test_more_ids_or_inputs_than_allowed_are_refused(stub: Any) -> None:
    code, words = code_of(lambda: infer(stub, PREDICT, user=np.zeros((3, 40), np.int64)))
    assert code is Code.RESOURCE_EXHAUSTED and "at most 100" in words
    many = {f"input_{n}": np.zeros((3, 1), np.int64) for n in range(20)}
    code, words = code_of(lambda: infer(stub, PREDICT, **many))
    assert code is Code.RESOURCE_EXHAUSTED and "inputs: expected at most 12, got 28" in words


def test_tokens_are_rotated_with_a_signal(ranker: Ranker, tmp_path: Path) -> None:
    tokens = private_file(tmp_path / "tokens", TOKENS)
    log = tmp_path / "log"
    renewed = "renewed-0123456789ab"
    with (
        running_server(ranker.repository, log, "--workers", 2, "--tokens-file", tokens) as running,
        ExitStack() as stack,
    ):
        # Connections of their own find every worker.
        stubs = [stack.enter_context(running.stub()) for _ in range(8)]
        ask = lambda token: {code_of(lambda: infer(s, token))[0] for s in stubs}  # noqa: B023, E731
        assert ask(PREDICT) == {Code.OK} and ask(renewed) == {Code.UNAUTHENTICATED}
        tokens.write_text("half a line that nobody can read\n")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: "the tokens stay as they were" in log.read_text(), "the log says so")
        assert ask(PREDICT) == {Code.OK}
        tokens.write_text(f"{renewed} predict\n")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: ask(renewed) == {Code.OK}, "the new token is known")
        assert ask(PREDICT) == {Code.UNAUTHENTICATED}
        url = f"{running.http_url}/v2/models/{MODEL}"
        until(lambda: {fetch(url, renewed)[0] for _ in range(8)} == {200}, "by all workers")
        assert {fetch(url, PREDICT)[0] for _ in range(8)} == {401}


def test_tokens_come_from_the_environment_and_files_that_all_may_read_are_warned_of(
    ranker: Ranker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDED_INFER_TOKENS", f"{PREDICT} predict; {ADMIN} admin")
    monkeypatch.setenv("SHARDED_INFER_PROT", "1")
    monkeypatch.setenv("SHARDED_INFER_RATE_LIMIT", "0.01")
    monkeypatch.setenv("SHARDED_INFER_RATE_BURST", "2")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{METRICS} predict\n")
    tokens.chmod(0o644)
    log = tmp_path / "log"
    with (
        running_server(ranker.repository, log, "--tokens-file", tokens) as running,
        running.stub() as stub,
    ):
        assert [code_of(lambda: infer(stub, PREDICT))[0] for _ in range(3)] == [
            Code.OK,
            Code.OK,
            Code.RESOURCE_EXHAUSTED,
        ]
        # Another client's bucket is its own.
        assert code_of(lambda: infer(stub, METRICS))[0] is Code.OK
        with pytest.raises(grpc.RpcError) as refused:
            infer(stub, PREDICT)
        trailing = dict(refused.value.trailing_metadata())
        assert 10_000 < int(trailing["grpc-retry-pushback-ms"]) <= 100_000
    text = log.read_text()
    assert "chmod 600" in text
    assert "SHARDED_INFER_PROT: no such variable; did you mean 'SHARDED_INFER_PORT'?" in text
    assert PREDICT not in text


def test_a_client_without_a_token_is_limited_by_its_address(ranker: Ranker, tmp_path: Path) -> None:
    options = ("--rate-limit", 0.01, "--rate-burst", 2)
    with (
        running_server(ranker.repository, tmp_path / "log", *options) as running,
        running.stub() as stub,
        running.stub() as other,
    ):
        codes = [code_of(lambda: infer(s))[0] for s in (stub, other, stub)]  # noqa: B023
        assert codes == [Code.OK, Code.OK, Code.RESOURCE_EXHAUSTED]
        status, words, headers = fetch(f"{running.http_url}/v2")
        assert status == 429 and "too many calls" in words and int(headers["Retry-After"]) > 0
        assert fetch(f"{running.http_url}/ready")[0] == 200


def test_rpcs_that_change_the_server_are_answered_on_the_admin_address_alone(
    ranker: Ranker, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = ("--admin-address", address, "--workers", 2, "--model-control", "explicit")
    with running_server(ranker.repository, tmp_path / "log", *options) as running:
        assert running.ready["admin_url"] == address
        with running.stub() as stub, grpc.insecure_channel(address) as channel:
            admin = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            code, words = code_of(lambda: stub.RepositoryModelLoad(LOAD, timeout=30))
            assert code is Code.PERMISSION_DENIED and "admin address" in words
            url = f"{running.http_url}/v2/repository/models/{MODEL}/load"
            status, words, _ = fetch(url, None, b"{}")
            assert status == 403 and "admin address" in words
            admin.RepositoryModelLoad(LOAD, timeout=60)
            assert infer(stub).model_name == MODEL
            assert code_of(lambda: infer(admin))[0] is Code.PERMISSION_DENIED


def test_limits_of_connections_hold(ranker: Ranker, tmp_path: Path) -> None:
    options = ("--max-connections", 2, "--max-metadata-kib", 4, "--max-connection-streams", 1)
    with (
        running_server(ranker.repository, tmp_path / "log", *options) as running,
        running.stub() as stub,
        running.stub() as second,
        running.stub() as third,
    ):
        over = threading.Event()
        large = (("x-large", "x" * 6000),)
        request = infer_request(good_inputs(2))
        code, words = code_of(lambda: stub.ModelInfer(request, metadata=large, timeout=30))
        assert code is Code.RESOURCE_EXHAUSTED and "metadata" in words
        assert code_of(lambda: infer(second))[0] is Code.OK
        # A call that lasts has the connection's only place.
        held = stub.ModelStreamInfer(_held(over), timeout=60)
        assert next(held).infer_response.model_name == MODEL
        assert code_of(lambda: stub.ModelInfer(request, timeout=1))[0] is Code.DEADLINE_EXCEEDED
        other = second.ModelStreamInfer(_held(over), timeout=60)
        assert next(other).infer_response.model_name == MODEL
        assert code_of(lambda: infer(third))[0] is Code.UNAVAILABLE
        other.cancel()
        # One that is idle makes room.
        until(lambda: code_of(lambda: infer(third))[0] is Code.OK, "a place is free")
        held.cancel()
        over.set()


def _held(over: threading.Event) -> Iterator[Any]:
    yield infer_request(good_inputs(2))
    over.wait(60)


def test_a_client_that_pings_too_often_is_dropped(ranker: Ranker, tmp_path: Path) -> None:
    options = ("--min-ping-seconds", 60, "--keepalive-seconds", 100)
    pings = [
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with running_server(ranker.repository, tmp_path / "log", *options) as running:
        states = []
        with grpc.insecure_channel(running.grpc_url, options=pings) as channel:
            channel.subscribe(states.append)
            infer(service_pb2_grpc.GRPCInferenceServiceStub(channel))
            until(lambda: grpc.ChannelConnectivity.IDLE in states[2:], "it is dropped")


@contextmanager
def tls_stub(
    running: RunningServer, authority: trustme.CA, client: trustme.LeafCert | None = None
) -> Iterator[Any]:
    pair = () if client is None else (client.private_key_pem, client.cert_chain_pems[0])
    files = [part.bytes() for part in (authority.cert_pem, *pair)]
    credentials = grpc.ssl_channel_credentials(*files)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(running.grpc_url, credentials, options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def certificates(tmp_path: Path) -> IssuedFiles:
    return issue_files(tmp_path)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_tls_refuses_plain_clients_and_takes_new_certificates_without_a_restart(
    ranker: Ranker, tmp_path: Path, certificates: IssuedFiles
) -> None:
    first, other = certificates.authority, trustme.CA()
    log = tmp_path / "log"
    options = (*certificates.options(), "--workers", 2)
    with running_server(ranker.repository, log, *options) as running:
        url = running.metrics_url
        assert url.startswith("https://")
        with running.stub() as plain:
            assert code_of(lambda: infer(plain))[0] is Code.UNAVAILABLE
        # What is no TLS is cut off.
        with pytest.raises(OSError):  # noqa: PT011 - reset or closed
            fetch(url.replace("https://", "http://"))

        def check_certificate(authority: trustme.CA, stranger: trustme.CA) -> None:
            """New connections see a certificate of the one authority; each worker looks."""
            for _ in range(4):
                with tls_stub(running, authority) as stub:
                    assert infer(stub).model_name == MODEL
            with tls_stub(running, stranger) as stub:
                assert code_of(lambda: infer(stub))[0] is Code.UNAVAILABLE
            assert {fetch(url, tls=trusting(authority))[0] for _ in range(8)} == {200}
            with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
                fetch(url, tls=trusting(stranger))

        with tls_stub(running, first) as held:
            assert infer(held).model_name == MODEL
            key = certificates.key.read_bytes()
            certificates.key.write_text("no key")
            check_certificate(first, other)
            until(lambda: "the certificates stay as they were" in log.read_text(), "it is said")
            certificates.key.write_bytes(key)
            certificates.renew(other)
            check_certificate(other, first)
            # Connections that are open stay so.
            assert infer(held).model_name == MODEL


def test_mtls_refuses_clients_without_a_certificate_of_its_authority(
    ranker: Ranker, tmp_path: Path, certificates: IssuedFiles
) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = (
        *certificates.options(),
        *("--tls-client-ca", certificates.ca, "--workers", 2, "--admin-address", address),
    )
    authority = certificates.authority
    with running_server(ranker.repository, tmp_path / "log", *options) as running:
        with tls_stub(running, authority) as stub:
            assert code_of(lambda: infer(stub))[0] is Code.UNAVAILABLE
        with tls_stub(running, authority, trustme.CA().issue_cert("caller")) as stub:
            assert code_of(lambda: infer(stub))[0] is Code.UNAVAILABLE
        with tls_stub(running, authority, authority.issue_cert("caller")) as stub:
            assert infer(stub).model_name == MODEL
        with grpc.insecure_channel(address) as channel:
            admin = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            asked = lambda: admin.LogSettings(service_pb2.LogSettingsRequest(), timeout=10)  # noqa: E731
            assert code_of(asked)[0] is Code.UNAVAILABLE


def test_a_public_address_needs_tls_or_tokens_or_a_word_that_it_is_meant(
    ranker: Ranker, sharded_infer: Command, tmp_path: Path
) -> None:
    words = ("serve", "-r", ranker.repository, "--port", 0, "--http-port", 0)
    refusal = ("--tls-certificate", "--tokens-file", "--insecure", "docs/security.md")
    sharded_infer(*words, "--host", EVERYWHERE).refused(EVERYWHERE, *refusal)
    sharded_infer(*words, "--admin-address", f"{EVERYWHERE}:9").refused(EVERYWHERE, *refusal)
    log = tmp_path / "log"
    with running_server(ranker.repository, log, "--host", EVERYWHERE, "--insecure"):
        pass
    assert f"everybody who reaches {EVERYWHERE} may call" in log.read_text()


def test_settings_that_contradict_each_other_are_refused(
    ranker: Ranker, sharded_infer: Command, certificates: IssuedFiles, tmp_path: Path
) -> None:
    words = ("serve", "-r", ranker.repository, "--port", 0, "--http-port", 0)
    sharded_infer(*words, "--tls-key", certificates.key).refused("tls_certificate", "both")
    sharded_infer(*words, "--tls-client-ca", certificates.ca).refused("tls_client_ca")
    sharded_infer(*words, "--rate-burst", 2).refused("rate_limit")
    sharded_infer(*words, "--admin-address", "9000").refused("HOST:PORT", "'9000'")
    sharded_infer(*words, "--tokens-file", tmp_path / "none").refused("tokens_file", "none")
    (tmp_path / "other").mkdir()
    other = issue_files(tmp_path / "other")
    mixed = ("--tls-certificate", certificates.certificate, "--tls-key", other.key)
    sharded_infer(*words, *mixed).refused("TLS", certificates.certificate.name)
