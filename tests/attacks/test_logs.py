"""A server's log while clients attack it in every way at once."""

import re
from collections import defaultdict
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import grpc
import pytest

from tests.attacks.attacker import Attack, Attacker, Target, call, grpc_channel
from tests.attacks.conftest import INFER, PREDICT_TOKEN
from tests.attacks.grpc_attacks import FLOODS, OPENING, UNFINISHED
from tests.attacks.http_client import connect
from tests.attacks.raw_http2 import END_HEADERS, END_STREAM, HEADERS, block, frame
from tests.support.servers import Ranker, RunningServer, good_inputs, infer_request, running_server
from tests.support.waiting import until

SECRET = b"s3cr3t"
METHODS = (
    INFER,
    b"/inference.GRPCInferenceService/ServerLive",
    b"/grpc.health.v1.Health/Check",
    b"/s3cr3t/\xff",
)
# What our code may stumble over.
SECRET_HEADERS = (
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
)
HTTP_LINES = (b"GET /s3cr3t\xff HTTP/1.1\r\n", b"s3cr3t\xff\r\n", b"GET / HTTP/1.1\r\ns3cr3t\r\n")
MOST_BYTES = 100_000
# Each is dropped for a reason of its own.
KINDS = (
    "120,000 calls without a message",
    "silent connections",
    "headers of which more comes always",
    "rapid resets",
    "resets that the server is made to send",
    "settings, unread",
    "pings, unread",
    "empty data",
    "windows too wide",
    "refusals, unread",
    "answers that may not be sent",
    "bytes that are none of HTTP/2",
)
DROPPED = "gRPC clients dropped"
# Slow requests are reported, each with its reason: ten a second, and ten at once.
SLOW_LINES = 20
# The clock of the log and the one that limits it are read one after the other.
LEAST_SECONDS = 0.9
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w+) (.*)")
SHORT_TIMES = """
import serving.grpc_api.compiled.settings as settings
settings._MESSAGE_SECONDS = settings._HANDSHAKE_SECONDS = settings._STALLED_SECONDS = 1.0
import serving.cli
serving.cli.main()
"""


def secrets(attacker: Attacker) -> None:
    """Calls with headers that libraries stumble over; each has a token."""
    for method in METHODS:
        for header in SECRET_HEADERS:
            head = frame(HEADERS, END_HEADERS | END_STREAM, 1, block(method, [header]))
            with attacker.connect(OPENING + head) as client:
                client.recv(65536)
            if attacker.stopped:
                return


def test_each_line_comes_once_a_second_without_client_words(ranker: Ranker, tmp_path: Path) -> None:
    attacks: dict[str, Attack] = {kind: (UNFINISHED | FLOODS)[kind] for kind in KINDS}
    attacks["secrets"] = secrets
    log = tmp_path / "log"
    with running_server(ranker.repository, log, program=SHORT_TIMES) as server:
        message = infer_request(good_inputs(3)).SerializeToString()
        target = Target(server.grpc_url, INFER, message)
        with ExitStack() as stack:
            attackers = [stack.enter_context(Attacker(target, make)) for make in attacks.values()]
            for one in attackers:
                until(one.struck.is_set, "the attack has been made", 120.0)
            for line in HTTP_LINES:
                for name, value in SECRET_HEADERS:
                    with connect(server) as client:
                        client.sendall(line + name + b": " + value + b"\r\n\r\n")
                        client.recv(65536)
            until(lambda: log.read_text().count(DROPPED) > 2, "drops are logged")
        with grpc_channel(target) as channel:
            assert call(channel, target)
    text = log.read_text()
    assert SECRET.decode() not in text and "\\xff" not in text, text[:3000]
    assert "Traceback" not in text, text[:3000]
    times: dict[str, list[datetime]] = defaultdict(list)
    for logged in text.splitlines():
        parts = LINE.fullmatch(logged)
        assert parts is not None, logged
        if parts[2] != "INFO":
            # Counts differ, and so does which reasons there are.
            times[re.sub(r":.*|\d+", "", parts[3])].append(datetime.fromisoformat(parts[1]))
    assert len(times[DROPPED]) > 1, text[:3000]
    for kind, moments in times.items():
        most = SLOW_LINES if kind.startswith("slow request") else 1
        apart = [
            (later - first).total_seconds()
            for first, later in zip(moments, moments[most:], strict=False)
        ]
        assert all(seconds >= LEAST_SECONDS for seconds in apart), (kind, apart)


def test_words_of_a_megabyte_are_not_answered_nor_logged(guarded: RunningServer) -> None:
    metadata = (("authorization", f"Bearer {PREDICT_TOKEN}"),)
    long = "s3cr3t" * 200_000
    codes = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
    with guarded.stub() as stub:
        for request in (
            infer_request(good_inputs(1), model=long),
            infer_request({long: good_inputs(1)["user"]}),
            infer_request({}, request_id=long),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request, timeout=60, metadata=metadata)
            assert len(refused.value.details()) < 1000 and refused.value.code() in codes
    log = guarded.log.read_bytes()
    assert len(log) < MOST_BYTES and SECRET not in log
