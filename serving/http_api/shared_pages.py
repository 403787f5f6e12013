"""Pages shared by simultaneous requests, at a bounded rate."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from serving.http_api.exchange import HttpAnswer, HttpRequest

# Pause after a page that several requests wait for, as a multiple of its own time. Python's threads
# take turns of 5 ms, for which the event loop would wait.
_PAUSES = 9.0


class SharedPages:
    """Makes pages one after another. All calls come from one event loop.

    A request never gets a page that was started before the request came.
    """

    def __init__(self, make: Callable[[HttpRequest], Awaitable[HttpAnswer]]) -> None:
        self._make = make
        self._turn = asyncio.Lock()
        # Pages that are not started, and the number of requests for each.
        self._next: dict[tuple[str, ...], tuple[asyncio.Task[HttpAnswer], list[None]]] = {}

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """The page for a request."""
        named = ("accept", "accept-encoding", "if-none-match")
        told = (request.headers.get(name, "") for name in named)
        key = (request.method, request.path, request.query, *told)
        if key not in self._next:
            waiting: list[None] = []
            task = asyncio.get_running_loop().create_task(self._begin(key, request, waiting))
            self._next[key] = (task, waiting)
        task, waiting = self._next[key]
        waiting.append(None)
        return await asyncio.shield(task)

    async def _begin(
        self, key: tuple[str, ...], request: HttpRequest, waiting: list[None]
    ) -> HttpAnswer:
        await self._turn.acquire()
        del self._next[key]
        began = monotonic()
        try:
            return await self._make(request)
        finally:
            crowded = len(waiting) > 2 or len(self._next) > 2
            pause = _PAUSES * (monotonic() - began) if crowded else 0.0
            asyncio.get_running_loop().call_later(pause, self._turn.release)
