"""Choice and queue of requests that another version scores too.

    kept(message, …)          by chance, of the requests that name no version
    offer(request)            after its answer was sent; a full queue drops it
    take(now)                 the next one, when its answer has had time to leave

The shadow of a model is the version of a label, while it is not the default version.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

from serving.inference.shadows.shadow_request import ShadowRequest
from serving.metrics.shadow_metrics import ShadowMetrics
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.versions.loaded_version import LoadedVersion

MOST_WAITING = 64
MOST_WAITING_BYTES = 64 * 2**20
# Transports pass answers to their own threads, which send them by then.
_SETTLE_SECONDS = 0.01

Served = Mapping[tuple[str, str], LoadedVersion]
# By model: the default version, and its shadow.
Shadowed = dict[str, tuple[LoadedVersion, LoadedVersion]]


class Shadows:
    """Shadows of one process, and the requests that wait for them. Thread-safe.

    Attributes:
        share: of chosen requests, from 0 to 1.
    """

    def __init__(
        self,
        label: str,
        share: float,
        random: Callable[[], float],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Chooses nothing before `set_names`; `random` is in [0, 1)."""
        self._label, self.share = label, share
        self._random, self._clock = random, clock
        self._lock = threading.Lock()
        # Replaced, never changed.
        self._shadowed: Shadowed = {}
        # Each with the time from which it may run.
        self._waiting: deque[tuple[float, ShadowRequest]] = deque()
        self._waiting_bytes = 0
        self.offered = threading.Event()

    @property
    def any(self) -> bool:
        """True if a model has a shadow."""
        return bool(self._shadowed)

    def set_names(self, served: Served) -> None:
        """Sets the versions of names; drops requests of changed shadows."""
        before, after = self._shadowed, shadowed_by(served, self._label)
        with self._lock:
            self._shadowed = after
            waiting, self._waiting = self._waiting, deque()
            self._waiting_bytes = 0
            for ready, request in waiting:
                model = request.version.model.name
                if _same(before.get(model), after.get(model)):
                    self._put(ready, request)
                elif model in before:
                    _count(before[model][1], "moved")
        for model in {*before, *after}:
            if not _same(before.get(model), after.get(model)):
                for shadowed, flag in ((before, False), (after, True)):
                    if model in shadowed and (metrics := shadowed[model][1].metrics.shadows):
                        metrics.shadowing(flag)

    def chosen(self, version: LoadedVersion, named: str) -> bool:
        """Chooses a request by chance; `named` is its requested version, empty: none."""
        if named or self.of(version) is None:
            return False
        return self._random() < self.share

    def kept(
        self,
        message: bytes,
        version: LoadedVersion,
        header: RequestHeader,
        memory: RequestTensors,
    ) -> bytes | None:
        """Message of a request if it is chosen, else None; `memory` has read its inputs."""
        if not self.chosen(version, header.model_version):
            return None
        if not memory.bytes_read:
            return message
        # Its client may write there again once it has its answer.
        shadow = self.of(version)
        if shadow is not None:
            _count(shadow, "shared_memory")
        return None

    def of(self, version: LoadedVersion) -> LoadedVersion | None:
        """Current shadow of a version, or None."""
        default, shadow = self._shadowed.get(version.model.name, (None, None))
        return shadow if default is version else None

    def offer(self, request: ShadowRequest) -> None:
        """Queues an answered request, or drops it."""
        with self._lock:
            shadow = self.of(request.version)
            if shadow is None:
                return
            full = len(self._waiting) >= MOST_WAITING
            full = full or self._waiting_bytes + len(request.message) > MOST_WAITING_BYTES
            if request.has_defaults:
                _count(shadow, "default_rows")
            elif request.samples > shadow.model.spec.serving.max_batch:
                _count(shadow, "large")
            elif full:
                _count(shadow, "full")
            else:
                self._put(self._clock() + _SETTLE_SECONDS, request)
                self.offered.set()

    def ready_at(self) -> float | None:
        """When the next request may run, on the clock; None: none waits."""
        with self._lock:
            return self._waiting[0][0] if self._waiting else None

    def take(self) -> tuple[ShadowRequest, LoadedVersion] | None:
        """Next request and its shadow; None if none may run now."""
        with self._lock:
            if not self._waiting or self._waiting[0][0] > self._clock():
                return None
            _, request = self._waiting.popleft()
            self._waiting_bytes -= len(request.message)
            shadow = self.of(request.version)
            # `set_names` removes requests whose version has no shadow.
            return None if shadow is None else (request, shadow)

    def counters(self) -> list[ShadowMetrics]:
        """Metrics of all shadows."""
        metrics = (shadow.metrics.shadows for _, shadow in self._shadowed.values())
        return [one for one in metrics if one is not None]

    def _put(self, ready: float, request: ShadowRequest) -> None:
        self._waiting.append((ready, request))
        self._waiting_bytes += len(request.message)


def shadowed_by(served: Served, label: str) -> Shadowed:
    """Default version of each model and the label's, where they differ."""
    pairs = {
        model: (default, served[model, label])
        for (model, name), default in served.items()
        if not name and (model, label) in served
    }
    return {model: pair for model, pair in pairs.items() if pair[0] is not pair[1]}


def _same(
    one: tuple[LoadedVersion, LoadedVersion] | None,
    other: tuple[LoadedVersion, LoadedVersion] | None,
) -> bool:
    if one is None or other is None:
        return one is other
    return one[0] is other[0] and one[1] is other[1]


def _count(shadow: LoadedVersion, reason: str) -> None:
    if shadow.metrics.shadows is not None:
        shadow.metrics.shadows.dropped(reason)
