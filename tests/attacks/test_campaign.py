"""Calls with random faults among honest ones, which are all answered rightly."""

import os
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.attacks.attacker import Footprint, Target, grpc_channel
from tests.attacks.conftest import INFER, attacked_server
from tests.attacks.faulty_calls import (
    End,
    FaultyConnection,
    altered,
    client_hello,
    faulty_connection,
)
from tests.attacks.raw_http2 import connect
from tests.support.servers import Ranker, good_inputs, infer_request, scores_of
from tests.support.tls import issue_files
from tests.support.waiting import until

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
CALLS = int(os.environ.get("SHARDED_INFER_CAMPAIGN_CALLS", 1_000_000 if LONG else 2_000))
WARM_UP = min(CALLS // 4, 10_000)
pytestmark = pytest.mark.timeout(4 * 3600 if CALLS > 10_000 else 300)
# Good calls, and the scores that each must get.
Messages = Mapping[bytes, Mapping[str, np.ndarray]]
# Calls that stall end soon, so that what they hold comes and goes many times.
SHORT_TIMES = """
import serving.grpc_api.compiled.settings as settings
settings._MESSAGE_SECONDS = settings._HANDSHAKE_SECONDS = settings._STALLED_SECONDS = 15.0
settings._KEEPALIVE_SECONDS = 10.0
import serving.cli
serving.cli.main()
"""
# Scores differ by rounding with their batch mates.
TOLERANCE = 1e-4
# Honest connections that stay, calls in flight on each, and rounds after which one is made anew.
KEPT, IN_FLIGHT, ROUNDS = 3, 20, 7
AT_ONCE, MOST_STALLED = 16, 300
SECONDS = 120.0
ADDRESSES = 200
NO_LINGER = struct.pack("ii", 1, 0)


class Campaign:
    """One thread that draws everything from a seed, and counts right answers and faulty calls."""

    def __init__(
        self, target: Target, messages: Messages, *, seed: int, tls: ssl.SSLContext | None
    ) -> None:
        self._target, self._tls = target, tls
        self._scores = messages
        self._known: dict[bytes, set[bytes]] = {text: set() for text in messages}
        self._random = Random(seed)
        self._honest: list[grpc.Channel] = []
        self._stalled: deque[socket.socket] = deque()
        self._sources = 0
        self.right = self.faults = 0
        self.wrong: list[str] = []

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._honest:
            channel.close()
        for client in self._stalled:
            client.close()

    def run(self, calls: int) -> None:
        """Makes honest and faulty calls, until there are at least `calls` of each."""
        self._honest = [grpc_channel(self._target) for _ in range(KEPT)]
        while min(self.right + len(self.wrong), self.faults) < calls:
            self._round()

    def end_stalled(self) -> int:
        """Waits until the server has ended every call that stalls; returns their connections."""
        for client in self._stalled:
            client.settimeout(SECONDS)
            with suppress(ConnectionError, ssl.SSLError):
                while client.recv(65536):
                    pass
            client.close()
        count = len(self._stalled)
        self._stalled.clear()
        return count

    def _round(self) -> None:
        """Faulty calls are under way when the honest ones come, and when they are answered."""
        drawn = [
            faulty_connection(self._random, self._target, tls=self._tls is not None)
            for _ in range(AT_ONCE)
        ]
        half = AT_ONCE // 2
        begun = [self._begin(faulty) for faulty in drawn[:half]]
        method = self._target.path.decode()
        sent: list[tuple[bytes, Any]] = [
            (text, channel.unary_unary(method).future(text, timeout=SECONDS))
            for channel in self._honest
            for text in self._random.choices(list(self._scores), k=IN_FLIGHT)
        ]
        begun += [self._begin(faulty) for faulty in drawn[half:]]
        for text, call in sent:
            self._check(text, call)
        for faulty, client in zip(drawn, begun, strict=True):
            self._end(faulty, client)
            self.faults += faulty.calls
        if self._random.randrange(ROUNDS) == 0:
            self._honest.pop(0).close()
            self._honest.append(grpc_channel(self._target))

    def _check(self, text: bytes, call: Any) -> None:
        try:
            body = call.result()
        except grpc.RpcError as error:
            self.wrong.append(f"no answer: {error}")
            return
        if body in self._known[text] or self._is_right(text, body):
            self._known[text].add(body)
            self.right += 1
        else:
            self.wrong.append(f"another answer: {body[:200]!r}")

    def _is_right(self, text: bytes, body: bytes) -> bool:
        got = scores_of(service_pb2.ModelInferResponse.FromString(body))
        expected = self._scores[text]
        return got.keys() == expected.keys() and all(
            got[name].shape == expected[name].shape
            and np.allclose(got[name], expected[name], rtol=0.0, atol=TOLERANCE)
            for name in expected
        )

    def _begin(self, faulty: FaultyConnection) -> socket.socket | None:
        self._sources = (self._sources + 1) % ADDRESSES
        source = f"127.67.0.{self._sources + 1}"
        try:
            client = connect(self._target.address, source=source, opening=b"")
        except OSError:
            return None
        client.settimeout(SECONDS)
        if self._tls is not None and self._random.randrange(10) == 0:
            # The fault is in the handshake, or before it.
            hello = client_hello(self._tls)
            part = hello[: self._random.randrange(len(hello))]
            said = self._random.choice((part, faulty.sent, altered(self._random, hello)))
            with suppress(OSError):
                client.sendall(said)
            return client
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_hostname="127.0.0.1")
            client.sendall(faulty.sent)
        except OSError:
            client.close()
            return None
        return client

    def _end(self, faulty: FaultyConnection, client: socket.socket | None) -> None:
        if client is None:
            return
        client.settimeout(0)
        with suppress(OSError):
            if faulty.end is End.STALL:
                self._stalled.append(client)
                if len(self._stalled) <= MOST_STALLED:
                    return
                client = self._stalled.popleft()
            elif faulty.end is End.HALF_CLOSE:
                client.shutdown(socket.SHUT_WR)
                client.recv(65536)
            elif faulty.end is End.READ:
                client.recv(self._random.choice((1, 100, 65536)))
            elif faulty.end is End.RESET:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        client.close()


def test_honest_calls_are_answered_among_faulty_calls(ranker: Ranker, tmp_path: Path) -> None:
    inputs = [good_inputs(3, seed) for seed in range(20)]
    messages = {
        infer_request(one).SerializeToString(deterministic=True): ranker.predict(one)
        for one in inputs
    }
    # Without TLS and with it. The short form's time goes to waiting for calls that stall.
    with ThreadPoolExecutor(1 if LONG else 2) as threads:
        attacked = [
            threads.submit(attack, ranker.repository, messages, tmp_path / name, secure=secure)
            for name, secure in (("plain", False), ("TLS", True))
        ]
    for one in attacked:
        one.result()


def attack(repository: Path, messages: Messages, folder: Path, *, secure: bool) -> None:
    folder.mkdir()
    files = issue_files(folder)
    options = files.options() if secure else ()
    with attacked_server(repository, folder / "log", *options, program=SHORT_TIMES) as server:
        pid = server.process.pid
        credentials = grpc.ssl_channel_credentials(files.ca.read_bytes()) if secure else None
        target = Target(server.grpc_url, INFER, next(iter(messages)), credentials)
        tls = files.context("h2") if secure else None
        fresh = Footprint.of(pid)
        with Campaign(target, messages, seed=0, tls=tls) as warm:
            warm.run(WARM_UP)
        until(lambda: Footprint.of(pid).files <= fresh.files, "the first clients are gone")
        before = Footprint.of(pid)
        with Campaign(target, messages, seed=24, tls=tls) as campaign:
            began, worked = time.monotonic(), time.thread_time()
            campaign.run(CALLS)
            took, worked = time.monotonic() - began, time.thread_time() - worked
            assert campaign.end_stalled() > 0
            assert warm.wrong + campaign.wrong == [], (len(campaign.wrong), campaign.wrong[:5])
            assert campaign.right >= CALLS and campaign.faults >= CALLS
            until(lambda: Footprint.of(pid).is_about(before), f"as before: {before}")
            print(  # noqa: T201 - what the long form is run by hand for
                f"{folder.name}: {campaign.right} right, {campaign.faults} faulty; {took:.1f} s, "
                f"{worked:.1f} s of the client's processor; {before} -> {Footprint.of(pid)}"
            )
