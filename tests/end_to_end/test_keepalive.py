"""`--keepalive-seconds`: clients that have gone without a word are dropped, others are not."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.attacks.raw_http2 import GOAWAY, PING, connect, frames
from tests.support.servers import Ranker, running_server

TIMEOUT_SECONDS = 4


def test_a_client_that_answers_no_ping_is_dropped_and_one_that_does_is_not(
    ranker: Ranker, tmp_path: Path
) -> None:
    options = ("--keepalive-seconds", 1, "--keepalive-timeout-seconds", TIMEOUT_SECONDS)
    with (
        running_server(ranker.repository, tmp_path / "log", *options) as server,
        ThreadPoolExecutor(1) as reader,
        # Neither has a call in progress.
        connect(server.grpc_url) as gone,
        connect(server.grpc_url) as there,
    ):
        seen: list[int] = []

        def read() -> None:
            for received in frames(there):
                seen.append(received.kind)

        def answer_others(sent: bytes) -> None:
            if sent[3] != PING:
                gone.sendall(sent)

        answering, began = reader.submit(read), time.monotonic()
        gone.settimeout(60.0)
        silent: Any = SimpleNamespace(recv=gone.recv, sendall=answer_others)
        kinds = [received.kind for received in frames(silent)]
        # It was asked first, and given its time.
        assert kinds.count(PING) == 1 and kinds[-1] == GOAWAY
        assert time.monotonic() - began >= TIMEOUT_SECONDS
        assert not answering.done() and seen.count(PING) >= 2 and GOAWAY not in seen
        there.shutdown(socket.SHUT_RDWR)
