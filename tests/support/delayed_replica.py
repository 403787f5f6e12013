"""A shard host whose answers are late at random."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import sleep


class DelayedReplica:
    """A proxy of a shard host that delays answers at random, and counts the delays."""

    def __init__(self, address: str, random: Random, late: Callable[[Random], float]) -> None:
        """Listen; `late` draws the seconds by which the next bytes are late."""
        host, _, port = address.rpartition(":")
        self._to, self._random, self._late = (host, int(port)), random, late
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.delays = 0
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(self._to)
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += (near, far)
                for pair in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, delays: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(2**16):
                seconds = self._late(self._random) if delays else 0.0
                if seconds:
                    self.delays += 1
                    sleep(seconds)
                to.sendall(chunk)
