"""Threads that run the batches of requests for which no thread waits.

A transport's own threads run what they bring. The requests of streams are brought by threads that
have to go on reading: these run them, one thread for each slot.
"""

import logging
import math
import threading
from collections.abc import Callable
from time import monotonic

from serving.dispatcher import Dispatcher

_log = logging.getLogger("sharded_infer")
# How often waiting requests are looked through for passed deadlines.
_EXPIRY_SECONDS = 0.005
_STOP_SECONDS = 5.0


class BatchRunners:
    """Runs what is ready when it is told that there is something, on threads of its own."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        """Takes the dispatcher's calls for more threads, beside whoever has them.

        Args:
            dispatcher: of the process.
        """
        self._dispatcher = dispatcher
        self._more = threading.Event()
        self._closed = False
        others = dispatcher.on_more

        def more() -> None:
            others()
            self.wake()

        dispatcher.on_more = more
        self._threads: list[threading.Thread] = []

    def start(self, warm_up: Callable[[], None]) -> None:
        """Starts the threads.

        Args:
            warm_up: run first on each: libraries keep state by thread, made at its first call.
        """
        for number in range(self._dispatcher.slots):
            thread = threading.Thread(
                target=self._run, args=(warm_up,), name=f"stream-run-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wake(self) -> None:
        """There is something to run, or to wait for."""
        self._more.set()

    def stop(self) -> None:
        """Ends the threads, after what they run."""
        self._closed = True
        self._more.set()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _run(self, warm_up: Callable[[], None]) -> None:
        try:
            warm_up()
        except Exception:
            _log.exception("internal error in warming a thread up")
        while not self._closed:
            try:
                self._more.wait(self._patience())
                # Before looking: what comes after this is told again.
                if not self._closed:
                    self._more.clear()
                while self._dispatcher.work():
                    pass
                if self._dispatcher.waiting[0]:
                    self._dispatcher.expire()
            except Exception:
                # A bug of ours must not end the thread, and with it the streams.
                _log.exception("internal error in running a batch")

    def _patience(self) -> float | None:
        if not self._dispatcher.waiting[0]:
            return None
        due = self._dispatcher.due()
        if due == math.inf:
            return _EXPIRY_SECONDS
        return max(0.0, min(_EXPIRY_SECONDS, due - monotonic()))
