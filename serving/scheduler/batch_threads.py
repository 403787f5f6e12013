"""Threads that run batches while those that bring calls are busy: one for each slot."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
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
        """Sets `dispatcher.on_more`."""
        self._dispatcher = dispatcher
        self._expiry = Expiry(dispatcher)
        # An entry wakes one thread.
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        dispatcher.on_more = self.wake
        self._threads: list[threading.Thread] = []

    def start(self, warm_up: Callable[[], None]) -> None:
        """Starts the threads; `warm_up` runs on each, as libraries create thread-local state."""
        for number in range(self._dispatcher.slots):
            thread = threading.Thread(
                target=self._run, args=(warm_up,), name=f"run-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wake(self) -> None:
        """Wakes a thread: there are requests to run, or to wait for."""
        if self._wakes.qsize() < self._dispatcher.slots:
            self._wakes.put(None)

    def stop(self) -> None:
        """Ends the threads after their current batches."""
        self._closed = True
        for _ in self._threads:
            self._wakes.put(None)
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _run(self, warm_up: Callable[[], None]) -> None:
        try:
            warm_up()
        except Exception:
            _log.exception("internal error in warming up a thread")
        while not self._closed:
            try:
                with suppress(Empty):
                    self._wakes.get(timeout=self._expiry.look())
                while self._dispatcher.work():
                    pass
            except Exception:
                # A bug of ours must not end the thread.
                _log.exception("internal error in running a batch")
