"""Thread on which shadows score, one request at a time, while a run slot is idle."""

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from serving.inference.shadows.shadow_request import ShadowRequest
from serving.inference.shadows.shadows import Shadows
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.version_queue import VersionQueue
from serving.status import status_of
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import run_batch

_log = logging.getLogger("sharded_infer")
# Expected time of the first request.
_FIRST_SECONDS = 0.001
# Between checks for an idle slot, while requests wait for one.
_LOOK_SECONDS = 0.005
# Between expiries of largest values, while no request waits.
_IDLE_SECONDS = 10.0
_STOP_SECONDS = 5.0
# After a bug of ours, so that it does not fill the log.
_ERROR_SECONDS = 1.0


class ShadowThread:
    """Scores the requests of `Shadows`, whenever the dispatcher has an idle run slot."""

    def __init__(self, shadows: Shadows, dispatcher: Dispatcher[Any]) -> None:
        self._shadows, self._dispatcher = shadows, dispatcher
        # It has the costs of the thread's requests; deadlines are not judged by it.
        self._queue = VersionQueue(BatchingPolicy(BatchingMode.INLINE), {1: _FIRST_SECONDS})
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, warm_up: Callable[[], None]) -> None:
        """Starts the thread; `warm_up` runs first on it, as in `BatchThreads.start`."""
        self._thread = threading.Thread(
            target=self._run, args=(warm_up,), name="shadow", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its current request; waiting requests are dropped."""
        self._closed.set()
        self._shadows.offered.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self, warm_up: Callable[[], None]) -> None:
        try:
            warm_up()
        except Exception:
            _log.exception("internal error in warming up a thread")
        while not self._closed.is_set():
            try:
                self._step()
            except Exception:
                # A bug of ours must not end the thread.
                _log.exception("internal error in scoring a request once more")
                self._closed.wait(_ERROR_SECONDS)

    def _step(self) -> None:
        shadows = self._shadows
        ready = shadows.ready_at()
        if ready is None:
            shadows.offered.wait(_IDLE_SECONDS)
            shadows.offered.clear()
            for counters in shadows.counters():
                counters.look(monotonic())
        elif (early := ready - monotonic()) > 0.0:
            self._closed.wait(early)
        elif not self._dispatcher.run_idle(self._queue, self._score_next):
            self._closed.wait(_LOOK_SECONDS)

    def _score_next(self) -> None:
        taken = self._shadows.take()
        if taken is not None:
            score_again(*taken)


def score_again(request: ShadowRequest, version: LoadedVersion) -> None:
    """Scores an answered request with another version, and counts how far the scores differ.

    Outputs of equal name and shape are compared. The other version reads the request again, and its
    refusals are counted by status code.
    """
    metrics = version.metrics.shadows
    if metrics is None:
        return
    try:
        ran = run_batch(version.model, request.read(version.reader))
    except Exception as error:
        metrics.failed(status_of(error).code.name)
        return
    names = version.model.spec.tower.outputs
    pairs = {
        place: (request.scores[name], scores)
        for place, (name, scores) in enumerate(zip(names, ran.scores, strict=True))
        if name in request.scores and request.scores[name].shape == scores.shape
    }
    metrics.scored(
        pairs,
        default_seconds=request.seconds,
        seconds=ran.lookup_seconds + ran.tower_seconds,
        now=monotonic(),
    )
