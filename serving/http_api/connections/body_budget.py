"""Memory limit of request bodies in a process."""

import asyncio

from serving.host.malloc import give_back_freed_memory
from serving.http_api.connections.limits import HttpLimits
from serving.http_api.exchange import HttpError

# Bodies of the largest size in memory at once; there may be more smaller ones.
_LARGEST_AT_ONCE = 4
_LEAST_HELD_BYTES = 256 * 2**20
# Of a body. Small bodies are bounded by the number of connections, and large ones leave them room.
_FREE_BYTES = 256 * 1024
# Above this size the allocator keeps freed memory unless it is returned to the system.
_MANY_BYTES = 64 * 2**20


class BodyBudget:
    """Counts the body bytes in a process. All calls come from one event loop."""

    def __init__(self, limits: HttpLimits) -> None:
        self._most_held = max(_LEAST_HELD_BYTES, _LARGEST_AT_ONCE * limits.body_bytes)
        self._held = 0
        self._most_lately = 0

    def hold(self, before: int, now: int) -> None:
        """Counts the bytes of a body that grew from `before` to `now`, until they are released.

        Raises:
            HttpError: over the limit. These bytes count nevertheless.
        """
        self._held += _counted(now) - _counted(before)
        self._most_lately = max(self._most_lately, self._held)
        if self._held > self._most_held:
            raise HttpError(
                429,
                f"the bodies of all requests are more than {self._most_held} bytes together",
                (("Retry-After", "1"),),
            )

    def release(self, size: int) -> None:
        """Counts a body as freed."""
        self._held -= _counted(size)
        if not self._held and self._most_lately > _MANY_BYTES:
            self._most_lately = 0
            asyncio.get_running_loop().call_soon(give_back_freed_memory)


def _counted(size: int) -> int:
    return max(0, size - _FREE_BYTES)
