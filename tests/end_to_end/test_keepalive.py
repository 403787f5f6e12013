"""`--keepalive-seconds`: clients that have gone without a word are dropped, others are not."""

import select
import socket
import time
from pathlib import Path

from tests.attacks.raw_http2 import ACK, GOAWAY, PING, PREFACE, SETTINGS, frame
from tests.support.servers import Ranker, RunningServer, running_server

HEADER_BYTES = 9
TIMEOUT_SECONDS = 4
LONGEST_SECONDS = 60.0


class RawClient:
    """An HTTP/2 client that begins a connection, and answers pings or does not."""

    def __init__(self, server: RunningServer, *, answers: bool) -> None:
        host, _, port = server.grpc_url.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        self.seen: list[int] = []
        self.is_open = True
        self._answers = answers
        self._unread = b""

    def read(self) -> None:
        """Takes in what has come."""
        try:
            received = self.socket.recv(65536)
        except ConnectionResetError:
            received = b""
        self.is_open = bool(received)
        self._unread += received
        while len(self._unread) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < end:
                return
            kind, flags = self._unread[3], self._unread[4]
            payload, self._unread = self._unread[HEADER_BYTES:end], self._unread[end:]
            self._take(kind, flags, payload)

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        self.seen.append(kind)
        if kind == SETTINGS:
            self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and self._answers:
            self.socket.sendall(frame(PING, ACK, 0, payload))


def test_a_client_that_answers_no_ping_is_dropped_and_one_that_does_is_not(
    ranker: Ranker, tmp_path: Path
) -> None:
    options = ("--keepalive-seconds", 1, "--keepalive-timeout-seconds", TIMEOUT_SECONDS)
    with running_server(ranker.repository, tmp_path / "log", *options) as server:
        began = time.monotonic()
        # Neither has a call in progress.
        gone, there = RawClient(server, answers=False), RawClient(server, answers=True)
        with gone.socket, there.socket:
            by_socket = {client.socket: client for client in (gone, there)}
            while gone.is_open and time.monotonic() - began < LONGEST_SECONDS:
                for readable in select.select(list(by_socket), [], [], 1.0)[0]:
                    by_socket[readable].read()
            took = time.monotonic() - began
            assert not gone.is_open, f"it was not dropped within {LONGEST_SECONDS} s"
            # It was asked first, and given its time.
            assert gone.seen.count(PING) == 1 and gone.seen[-1] == GOAWAY
            assert took >= TIMEOUT_SECONDS
            assert there.is_open and there.seen.count(PING) >= 2 and GOAWAY not in there.seen
