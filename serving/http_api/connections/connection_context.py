"""What the connections of one event loop share, and what an application sees of them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from serving.http_api.connections.body_budget import BodyBudget
from serving.http_api.connections.connection_table import ConnectionTable, Drop
from serving.http_api.connections.limits import HttpLimits
from serving.http_api.connections.request_head import RequestHead
from serving.http_api.exchange import HttpAnswer, HttpError

# Registers a callback for the loss of the connection of the request in progress. The event loop
# calls it. None removes it.
WhenLost = Callable[[Callable[[], None] | None], None]
# Also asked on connections beyond the limits.
PROBES = frozenset(("/live", "/ready", "/v2/health/live", "/v2/health/ready"))
_BUFFER_BYTES = 256 * 1024
# Connections that go on in one turn of the loop.
_OF_A_TURN = 4


class Client(Protocol):
    """The client of one request, as the application sees it.

    Attributes:
        peer: its address, as `address:port`.
    """

    peer: str

    async def read_body(self, most: int) -> bytes:
        """Reads the request's body; without a call, it is not taken in.

        Args:
            most: bytes that it may have.

        Raises:
            RequestTooLargeError: it is larger.
            RequestError: it is malformed.
            HttpError: it comes too slowly, too many bytes are held, or the client disconnects.
        """
        ...

    def when_lost(self, told: Callable[[], None] | None) -> None:
        """Registers the callback, as `WhenLost` describes."""
        ...


Answering = Callable[[RequestHead, Client], Awaitable[HttpAnswer]]


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """What the connections of one event loop share.

    Attributes:
        answer: answers a request, whatever happens; reads its body or not.
        keeps_open: whether connections stay open after an answer.
        drop: counts a connection or request that was dropped.
        buffer: what came last, on any of them.
    """

    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    answer: Answering
    keeps_open: bool
    drop: Callable[[Drop], None]
    table: ConnectionTable
    bodies: BodyBudget
    buffer: bytearray = field(default_factory=lambda: bytearray(_BUFFER_BYTES))
    _later: deque[Callable[[], None]] = field(default_factory=deque)

    def call_later(self, go_on: Callable[[], None]) -> None:
        """Has a connection go on with what it has received, a few of them each turn of the loop.

        A client that waits for its answers is thus before those that send on without waiting.
        """
        self._later.append(go_on)
        if len(self._later) == 1:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        for _ in range(min(_OF_A_TURN, len(self._later))):
            self.loop.call_soon(self._later.popleft())
        if self._later:
            self.loop.call_soon(self._go_on)

    def hold(self, before: int, now: int) -> None:
        """Counts the bytes of a body, as `BodyBudget` describes. A slow one gives way to it.

        Raises:
            HttpError: too many bytes are held, and no body is slow.
        """
        try:
            self.bodies.hold(before, now)
        except HttpError:
            slow = self.table.slow_body(self.loop.time())
            if slow is None:
                raise
            self.drop(Drop.BODY_LATE)
            slow.abort()
