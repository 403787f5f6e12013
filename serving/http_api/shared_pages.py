"""Pages shared by simultaneous requests, at a bounded rate."""

import threading
from collections.abc import Callable
from time import monotonic

from serving.http_api.exchange import HttpAnswer, HttpCall, HttpRequest, answer_of, error_answer

# Requests that wait for their pages. Each page takes milliseconds.
_MOST_WAITING = 64
# Pause after a page that several requests wait for, as a multiple of its own time. Python's threads
# take turns of 5 ms, for which predict calls would wait.
_PAUSES = 9.0
_CROWD = 2


class SharedPages:
    """Makes pages one after another, on a thread of its own. Thread-safe.

    A request never gets a page that was started before the request came.
    """

    def __init__(self, make: Callable[[HttpRequest], HttpAnswer]) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._closed = False
        # Pages that are not started, and the requests for each.
        self._next: dict[tuple[str, ...], list[HttpCall]] = {}
        self._waiting = 0
        threading.Thread(target=self._run, name="http-page", daemon=True).start()

    def take(self, call: HttpCall) -> None:
        """Answers a request with its page, later, or refuses one too many."""
        request = call.request
        named = ("accept", "accept-encoding", "if-none-match")
        told = (request.headers.get(name, "") for name in named)
        key = (request.method, request.path, request.query, *told)
        with self._changed:
            is_refused = self._waiting >= _MOST_WAITING
            if not is_refused:
                self._waiting += 1
                self._next.setdefault(key, []).append(call)
                self._changed.notify_all()
        if is_refused:
            busy = "too many pages are asked for"
            call.reply(error_answer(503, busy, (("Retry-After", "1"),)))

    def close(self) -> None:
        """Ends the thread after the page in progress."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next or self._closed)
                if self._closed:
                    return
                calls = self._next.pop(next(iter(self._next)))
            began = monotonic()
            try:
                answer = self._make(calls[0].request)
            except Exception as error:
                answer = answer_of(error)
            for call in calls:
                call.reply(answer)
            with self._changed:
                self._waiting -= len(calls)
                if len(calls) > _CROWD or len(self._next) > _CROWD:
                    pause = _PAUSES * (monotonic() - began)
                    self._changed.wait_for(lambda: self._closed, pause)
