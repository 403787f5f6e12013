"""Honest calls, of which each is checked, among as many that each have a fault drawn by chance."""

import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from tests.attacks.attacker import Target
from tests.attacks.faulty_calls import End, FaultyConnection, altered, faulty_connection
from tests.attacks.honest_client import grpc_channel
from tests.attacks.raw_http2 import connect
from tests.support.servers import scores_of

# Scores differ by rounding with their batch mates.
_TOLERANCE = 1e-4
# Honest connections that stay, calls in flight on each, and rounds after which one is made anew.
_KEPT, _IN_FLIGHT, _ROUNDS = 3, 20, 7
_AT_ONCE, _MOST_STALLED = 16, 300
_SECONDS = 120.0
_ADDRESSES = 200
_NO_LINGER = struct.pack("ii", 1, 0)


class _HonestClient:
    """A connection with many calls in flight."""

    def __init__(self, target: Target) -> None:
        self._channel = grpc_channel(target)
        self._ask = self._channel.unary_unary(target.path.decode())

    def close(self) -> None:
        self._channel.close()

    def send(self, messages: list[bytes]) -> list[tuple[bytes, Any]]:
        """Begins calls; returns each message and its call."""
        return [(text, self._ask.future(text, timeout=_SECONDS)) for text in messages]


class Campaign:
    """One thread that draws everything from a seed.

    Attributes:
        right: honest calls that were answered as they must be.
        wrong: messages of the others.
        faults: faulty calls that were made.
    """

    def __init__(
        self,
        target: Target,
        messages: Mapping[bytes, Mapping[str, np.ndarray]],
        *,
        seed: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Draws nothing yet; of messages it is given the scores that each must get."""
        self._target, self._tls = target, tls
        self._scores = messages
        self._known: dict[bytes, set[bytes]] = {text: set() for text in messages}
        self._random = Random(seed)
        self._honest: list[_HonestClient] = []
        self._stalled: deque[socket.socket] = deque()
        self._sources = 0
        self.right = self.faults = 0
        self.wrong: list[str] = []

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        for client in self._stalled:
            client.close()

    def run(self, calls: int) -> None:
        """Makes honest calls, and at least as many that have faults, until there are so many."""
        began, faults = self.right + len(self.wrong), self.faults
        # The server has closed those that were idle since.
        self._leave()
        self._honest = [_HonestClient(self._target) for _ in range(_KEPT)]
        done = 0
        while done < calls:
            self._round()
            done = min(self.right + len(self.wrong) - began, self.faults - faults)

    def end_stalled(self) -> int:
        """Waits until the server has ended every call that stalls; returns their connections."""
        for client in self._stalled:
            client.settimeout(_SECONDS)
            with suppress(ConnectionError, ssl.SSLError):
                while client.recv(65536):
                    pass
            client.close()
        count = len(self._stalled)
        self._stalled.clear()
        return count

    def _leave(self) -> None:
        for honest in self._honest:
            honest.close()

    def _round(self) -> None:
        """Faulty calls are under way when the honest ones come, and when they are answered."""
        drawn = [
            faulty_connection(self._random, self._target, tls=self._tls is not None)
            for _ in range(_AT_ONCE)
        ]
        half = _AT_ONCE // 2
        begun = [self._begin(one) for one in drawn[:half]]
        sent = [
            call
            for honest in self._honest
            for call in honest.send(self._random.choices(list(self._scores), k=_IN_FLIGHT))
        ]
        begun += [self._begin(one) for one in drawn[half:]]
        for text, call in sent:
            self._check(text, call)
        for one, client in zip(drawn, begun, strict=True):
            self._end(one, client)
            self.faults += one.calls
        if self._random.randrange(_ROUNDS) == 0:
            self._honest.pop(0).close()
            self._honest.append(_HonestClient(self._target))

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
            and np.allclose(got[name], expected[name], rtol=0.0, atol=_TOLERANCE)
            for name in expected
        )

    def _begin(self, one: FaultyConnection) -> socket.socket | None:
        self._sources = (self._sources + 1) % _ADDRESSES
        try:
            client = connect(
                self._target.address, source=f"127.67.0.{self._sources + 1}", opening=b""
            )
        except OSError:
            return None
        client.settimeout(_SECONDS)
        if self._tls is not None and self._random.randrange(10) == 0:
            # The fault is in the handshake, or before it.
            hello = client_hello(self._tls)
            part = hello[: self._random.randrange(len(hello))]
            with suppress(OSError):
                client.sendall(self._random.choice((part, one.sent, altered(self._random, hello))))
            return client
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_hostname="127.0.0.1")
            client.sendall(one.sent)
        except OSError:
            client.close()
            return None
        return client

    def _end(self, one: FaultyConnection, client: socket.socket | None) -> None:
        if client is None:
            return
        client.settimeout(0)
        with suppress(OSError):
            if one.end is End.STALL:
                self._stalled.append(client)
                if len(self._stalled) <= _MOST_STALLED:
                    return
                client = self._stalled.popleft()
            elif one.end is End.HALF_CLOSE:
                client.shutdown(socket.SHUT_WR)
                client.recv(65536)
            elif one.end is End.READ:
                client.recv(self._random.choice((1, 100, 65536)))
            elif one.end is End.RESET:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        client.close()


def client_hello(tls: ssl.SSLContext) -> bytes:
    """How a handshake begins."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        tls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()
