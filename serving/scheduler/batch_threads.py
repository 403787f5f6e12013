"""Threads that run batches of requests for which no thread waits.

A transport's own threads run the requests that they bring. A thread that reads a stream must go on
reading, so one thread per slot runs its requests here.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from serving.scheduler.dispatcher import Dispatcher

_log = logging.getLogger("sharded_infer")
# Seconds between checks of waiting requests for passed deadlines.
EXPIRY_SECONDS = 0.005
_STOP_SECONDS = 5.0


class Expiry:
    """Fails waiting requests whose deadlines pass, for threads that only bring requests."""

    def __init__(self, dispatcher: Dispatcher[Any]) -> None:
        self._dispatcher = dispatcher
        self._next = 0.0

    def look(self) -> float | None:
        """Fails expired requests, if the next check is due.

        Returns the seconds until this or `Dispatcher.work` is due next; None if nothing waits.
        """
        if not self._dispatcher.waiting[0]:
            return None
        now = monotonic()
        if now >= self._next:
            self._next = now + EXPIRY_SECONDS
            self._dispatcher.expire()
        return max(0.0, min(self._dispatcher.due(), self._next) - monotonic())


class BatchThreads:
    """Threads that run ready batches whenever they are woken."""

    def __init__(self, dispatcher: Dispatcher[Any]) -> None:
        """Adds itself to `dispatcher.on_more`; the callback that was set before is kept."""
        self._dispatcher = dispatcher
        self._expiry = Expiry(dispatcher)
        self._more = threading.Event()
        self._closed = False
        others = dispatcher.on_more

        def more() -> None:
            others()
            self.wake()

        dispatcher.on_more = more
        self._threads: list[threading.Thread] = []

    def start(self, warm_up: Callable[[], None]) -> None:
        """Starts the threads; `warm_up` runs on each, as libraries create thread-local state."""
        for number in range(self._dispatcher.slots):
            thread = threading.Thread(
                target=self._run, args=(warm_up,), name=f"stream-run-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wake(self) -> None:
        """Wakes the threads: there are requests to run, or to wait for."""
        self._more.set()

    def stop(self) -> None:
        """Ends the threads after their current batches."""
        self._closed = True
        self._more.set()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _run(self, warm_up: Callable[[], None]) -> None:
        try:
            warm_up()
        except Exception:
            _log.exception("internal error in warming up a thread")
        while not self._closed:
            try:
                self._more.wait(self._expiry.look())
                # Cleared before looking, so that a later wake-up is not lost.
                if not self._closed:
                    self._more.clear()
                while self._dispatcher.work():
                    pass
            except Exception:
                # A bug of ours must not end the thread, and with it the streams.
                _log.exception("internal error in running a batch")
