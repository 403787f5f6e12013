"""One request on its way through the dispatcher."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from serving.lane import Ticket


class Job:
    """One request on its way through the dispatcher.

    Attributes:
        ticket: its place in the queue.
        work: what is to be run; the dispatcher's `execute` reads it.
        result: what `execute` gave.
        error: why there is no result.
        started: when its batch began, on the monotonic clock; 0 when it never did.
        on_done: called once when result or error is there, on the thread that brought it about;
            None for a request whose thread waits.
    """

    __slots__ = ("error", "on_done", "result", "started", "ticket", "wake", "work")

    def __init__(
        self,
        work: Any,
        ticket: Ticket,
        on_done: "Callable[[Job], None] | None" = None,
    ) -> None:
        """Keeps the request."""
        self.work = work
        self.ticket = ticket
        ticket.item = self
        self.on_done = on_done
        self.result: Any = None
        self.error: Exception | None = None
        self.started = 0.0
        # Held, while a thread waits for the answer: releasing it wakes the thread.
        self.wake: threading.Lock | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self.result is not None or self.error is not None

    def nudge(self) -> None:
        """Wakes the thread that waits: something has changed. Twice is as good as once."""
        if self.wake is not None:
            with suppress(RuntimeError):
                self.wake.release()
