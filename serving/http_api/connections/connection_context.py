"""State shared by the connections of one event loop, and the application's view of a client."""

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

# Registers a callback for the loss of the connection of the request in progress, called on the
# event loop. None removes it.
WhenLost = Callable[[Callable[[], None] | None], None]
# Also answered on connections beyond the limits.
PROBES = frozenset(("/live", "/ready", "/v2/health/live", "/v2/health/ready"))
_BUFFER_BYTES = 256 * 1024
# Connections that continue in one turn of the loop.
_OF_A_TURN = 4


class Client(Protocol):
    """The client of one request, as the application sees it; `peer` is `address:port`."""

    peer: str

    async def read_body(self, most: int) -> bytes:
        """Reads the request's body; without a call, it is not received.

        Raises:
            RequestTooLargeError: it has more than `most` bytes.
            RequestError: it is malformed.
            HttpError: it comes too slowly, memory is short, or the client disconnects.
        """
        ...

    def when_lost(self, told: Callable[[], None] | None) -> None:
        """Registers a callback as `WhenLost`."""
        ...


Answering = Callable[[RequestHead, Client], Awaitable[HttpAnswer]]


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """State shared by the connections of one event loop.

    `answer` handles errors too, `drop` counts, and `buffer` has the last received bytes of any
    connection. With `keeps_open` a connection stays open after an answer.
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
        """Continues a connection in a later turn of the loop, a few connections in each turn.

        Clients that wait for their answers thus come before pipelining ones.
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
        """Counts a body by `BodyBudget.hold`, and evicts a slow one if memory is short.

        Raises HttpError if none is slow.
        """
        try:
            self.bodies.hold(before, now)
        except HttpError:
            slow = self.table.slow_body(self.loop.time())
            if slow is None:
                raise
            self.drop(Drop.BODY_LATE)
            slow.abort()
