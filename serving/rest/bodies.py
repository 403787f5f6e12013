"""Requests' bodies: read within limits, of each and of all together, or left unread."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from kernels.wording import counted
from serving.freed_memory import give_back_freed_memory
from serving.rest.connection import HttpLimits
from serving.rest.exchange import HttpError
from sharded_infer.errors import RequestTooLargeError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
_MOST_LENGTH_DIGITS = 18
# Of the largest bodies, how many are held at once; of smaller ones there may be more.
_LARGEST_AT_ONCE = 4
_LEAST_HELD_BYTES = 256 * 2**20
# More than this stays with the process for good once it is freed, unless it is given back.
_MANY_BYTES = 64 * 2**20
_DISCARDED_BYTES, _DISCARD_SECONDS = 2**20, 1.0


class Bodies:
    """The bodies that one process holds. It belongs to an event loop."""

    def __init__(self, limits: HttpLimits) -> None:
        """Begins with none.

        Args:
            limits: of each.
        """
        self._limits = limits
        self._most_held = max(_LEAST_HELD_BYTES, _LARGEST_AT_ONCE * limits.body_bytes)
        self._held = 0
        self._most_lately = 0

    @asynccontextmanager
    async def read(
        self, headers: Mapping[str, str], receive: Receive, most: int
    ) -> AsyncIterator[bytes]:
        """Reads a body, which counts as held until the context ends.

        Args:
            headers: the request's.
            receive: ASGI's.
            most: the bytes it may have.

        Raises:
            RequestTooLargeError: it is larger.
            HttpError: it comes too slowly, too many are held, or the client has gone.
        """
        parts: list[bytes] = []
        size = 0
        try:
            try:
                await self._take(headers, receive, most, parts)
            finally:
                size = sum(map(len, parts))
            body = b"".join(parts)
            parts.clear()
            yield body
        finally:
            self._let_go(size)

    async def _take(
        self, headers: Mapping[str, str], receive: Receive, most: int, parts: list[bytes]
    ) -> None:
        length = headers.get("content-length", "0")
        if len(length) > _MOST_LENGTH_DIGITS or int(length) > most:
            raise RequestTooLargeError(f"the body is {length[:40]} bytes, expected at most {most}")
        left, more = most, True
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HttpError(499, "the client has gone")
                    parts.append(message.get("body", b""))
                    self._hold(len(parts[-1]))
                    left -= len(parts[-1])
                    if left < 0:
                        raise RequestTooLargeError(f"the body is more than {counted(most, 'byte')}")
                    more = message.get("more_body", False)
        except TimeoutError as error:
            seconds = self._limits.body_seconds
            raise HttpError(408, f"the body took more than {seconds:g} s") from error

    def _hold(self, size: int) -> None:
        self._held += size
        self._most_lately = max(self._most_lately, self._held)
        if self._held > self._most_held:
            raise HttpError(
                429,
                f"the bodies of all requests are more than {self._most_held} bytes together",
                (("Retry-After", "1"),),
            )

    def _let_go(self, size: int) -> None:
        self._held -= size
        if not self._held and self._most_lately > _MANY_BYTES:
            self._most_lately = 0
            asyncio.get_running_loop().call_soon(give_back_freed_memory)


def has_body(headers: Mapping[str, str]) -> bool:
    """Whether a request's headers announce a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


async def discard_body(receive: Receive) -> None:
    """Lets go by what is left of a body, for a moment.

    Closing a connection from which not all was read would reset it, and its client might lose the
    answer.

    Args:
        receive: ASGI's.
    """
    left = _DISCARDED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                if not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
