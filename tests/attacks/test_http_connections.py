"""HTTP clients that flood, stall or hold connections, beside one that is always answered."""

import http.client
import json
import resource
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.attacks.attacker import MIB, Attack, Attacker, Footprint, Target
from tests.attacks.conftest import attacked_server
from tests.attacks.http_client import INFER
from tests.support.server_pages import counted
from tests.support.servers import Ranker, RunningServer, good_inputs, json_inputs
from tests.support.waiting import until

MOST, MOST_OF_ADDRESS = 200, 150
DESCRIPTORS = 512
# Of the honest client. A server that stops has answered fewer after a minute.
CALLS = 30
SECONDS = 60.0
HEAD = b" HTTP/1.1\r\nHost: x\r\n"
LIVE = b"GET /live" + HEAD + b"\r\n"
POST = f"POST {INFER}".encode() + HEAD


def flood(opening: bytes, more: bytes, *, reads: bool) -> Attack:
    def attack(attacker: Attacker) -> None:
        with closing(attacker.connect(opening)) as client:
            while not attacker.stopped:
                client.sendall(more)
                attacker.struck.set()
                if reads:
                    client.recv(MIB)

    return attack


def hold(count: int, sent: bytes) -> Attack:
    def attack(attacker: Attacker) -> None:
        for _ in range(count):
            with suppress(OSError):
                attacker.connect(sent)
        attacker.pause()

    return attack


ATTACKS: dict[str, Attack] = {
    "requests without waiting for answers": flood(b"", LIVE * 2000, reads=True),
    "requests whose answers are not read": flood(b"", LIVE * 2000, reads=False),
    "unknown paths without waiting": flood(b"", (b"GET /v2/x" + HEAD + b"\r\n") * 500, reads=True),
    "silent connections": hold(600, b""),
    "idle connections": hold(600, LIVE),
    "headers that do not end": hold(600, b"GET /live HTTP/1.1\r\nHost"),
    "bodies that do not come": hold(600, POST + b"Content-Length: 1000\r\n\r\n{"),
    "large answers that are not read": hold(50, (b"GET /metrics" + HEAD + b"\r\n") * 100),
}


@pytest.fixture(scope="module")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("http") / "stderr"
    limits = ("--http-max-connections", MOST, "--http-max-address-connections", MOST_OF_ADDRESS)
    with attacked_server(ranker.repository, log, *limits) as running:
        # Of descriptors, too, there are fewer than attackers want.
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        yield running
    text = log.read_text()
    # Once a second, and nothing of what clients send.
    assert len(text) < 100_000 and "Host" not in text, text


@contextmanager
def client_of(server: RunningServer) -> Iterator[http.client.HTTPConnection]:
    address = urlsplit(server.metrics_url).netloc
    with closing(http.client.HTTPConnection(address, timeout=SECONDS)) as client:
        yield client


def is_ready(server: RunningServer) -> bool:
    with client_of(server) as client:
        client.request("GET", "/ready")
        response = client.getresponse()
        return response.status == 200 and response.read() == b"ready\n"


def attacking(server: RunningServer, attack: Attack) -> Attacker:
    return Attacker(Target(urlsplit(server.metrics_url).netloc, b"", b""), attack, "127.0.0.1")


@pytest.mark.parametrize("case", ATTACKS)
def test_an_honest_client_is_answered(server: RunningServer, ranker: Ranker, case: str) -> None:
    good = json.dumps({"inputs": json_inputs(good_inputs(2))}).encode()
    scores = ranker.predict(good_inputs(2))["score"]
    assert is_ready(server)
    pid = server.process.pid
    before = Footprint.of(pid)
    with ExitStack() as stack:
        attackers = [stack.enter_context(attacking(server, ATTACKS[case])) for _ in range(2)]
        for attacker in attackers:
            until(attacker.struck.is_set, "the attack goes on", SECONDS)
        running = Footprint.of(pid).threads
        client = stack.enter_context(client_of(server))
        for _ in range(CALLS):
            client.request("POST", INFER, good)
            response = client.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            found = {output["name"]: output["data"] for output in answer["outputs"]}
            assert np.array_equal(np.array(found["score"], np.float32), scores)
            assert is_ready(server)
        # No thread waits for a client.
        assert Footprint.of(pid).threads <= running + 8
    until(lambda: Footprint.of(pid).memory - before.memory < 100 * MIB, "the memory comes back")
    until(lambda: Footprint.of(pid).files <= before.files + 2, "the connections are closed")


def test_probes_are_answered_where_all_descriptors_are_used(ranker: Ranker, tmp_path: Path) -> None:
    with attacked_server(ranker.repository, tmp_path / "log") as server:
        # As if others than HTTP's clients had taken them: fewer are allowed than are open.
        pid = server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (Footprint.of(pid).files, hard))
        for _ in range(20):
            assert is_ready(server)
        with attacking(server, ATTACKS["silent connections"]) as silent:
            until(silent.struck.is_set, "they are connected", SECONDS)
            for _ in range(20):
                assert is_ready(server)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        dropped = partial(counted, server, "sharded_infer_http_dropped_total", reason="descriptors")
        until(dropped, "it is counted")
