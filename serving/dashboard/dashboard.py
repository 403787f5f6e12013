"""The live page: its paths, and the thread that keeps its history.

    /, /dashboard        the page
    /dashboard/...       its files, and the drawings of plans
    /api/live?since=T    all that it shows: what is now, and the readings after T

Requests only read: a reading of the metrics is taken at most once a second, plans are read and
drawn by the thread, beside what is served and after it.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import asdict
from time import time
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry

from serving.background import lower_priority
from serving.board import Board
from serving.dashboard.answer import Answer, Content, PageRequest, answered, refused
from serving.dashboard.assets import PAGE, read_assets
from serving.dashboard.history import KEPT_SECONDS, History
from serving.dashboard.live_document import API_VERSION, metrics_fields, models_fields
from serving.dashboard.plans import Plans
from serving.dashboard.reading import Reading, read_metrics
from serving.dashboard.swaps import Swaps
from serving.releases import Releases
from serving.server_state import ServerState

_log = logging.getLogger("sharded_infer")
# The board is looked at so often; it says in 8 bytes whether something changed.
_LOOK_SECONDS = 0.5
# A reading is taken so often when nobody looks at the page.
_READ_SECONDS = 5.0
_LOAD_SECONDS = "sharded_infer_version_load_seconds"
# Different times that pages ask from, answered from memory until the next reading.
_MOST_ANSWERS = 16


class Dashboard:
    """What the live page shows of one server. Any thread may ask.

    It belongs to the process that answers HTTP, and is made in it.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        state: ServerState,
        board: Board,
        *,
        topology: str | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        """Reads the page's files; `start` begins the history.

        Args:
            registry: the server's metrics.
            state: whether the server is ready.
            board: what versions it holds.
            topology: which plan it uses; None: each version's first.
            clock: seconds since 1970.
        """
        self._registry = registry
        self._state = state
        self._board = board
        self._clock = clock
        self._started = clock()
        self._assets = read_assets()
        self._history = History(self._read, clock)
        self._swaps = Swaps()
        self._plans = Plans(topology)
        self._seen = -1
        self._releases = Releases()
        # By the time asked from: all answers are of the same newest reading and state.
        self._answers: dict[float, Content] = {}
        self._answered: tuple[object, ...] = ()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    def start(self) -> None:
        """Begins to keep the history."""
        self._thread.start()

    def close(self) -> None:
        """Ends that."""
        self._stop.set()

    def answer(self, request: PageRequest) -> Answer | None:
        """The answer to a request; None where its path is not the live page's.

        `/` is the page for who asks for HTML, as browsers do, and somebody else's otherwise.
        """
        content = self._content(request)
        if content is None:
            if request.path.startswith(("/dashboard", "/api/")):
                return refused(request, 404, f"no page {request.path}")
            return None
        if request.method not in {"GET", "HEAD"}:
            return refused(request, 405, f"{request.method}: expected GET or HEAD")
        return answered(request, content)

    def look(self) -> None:
        """Sees what the board says; the thread's, and cheap where nothing has changed."""
        if self._board.sequence == self._seen:
            return
        self._seen, releases = self._board.releases()
        paths = [h.path for model in releases.models.values() for h in model.held]
        self._swaps.see(releases, self._clock(), self._phases)
        self._releases = releases
        self._plans.draw(paths)

    def _content(self, request: PageRequest) -> Content | None:
        path = request.path
        if path == "/dashboard" or (path == "/" and "text/html" in request.accept):
            return self._assets[PAGE]
        if path == "/api/live":
            return self._live(_since(request.query))
        if path == "/dashboard/plan":
            return self._plan(request.query)
        return self._assets.get(path.removeprefix("/dashboard/")) if path != "/" else None

    def _live(self, since: float) -> Content:
        reading = self._history.newest()
        state = self._state_name()
        with self._lock:
            about = (reading, state, self._releases, self._plans.drawn)
            if not _same(self._answered, about):
                self._answers.clear()
                self._answered = about
            if since not in self._answers:
                if len(self._answers) >= _MOST_ANSWERS:
                    self._answers.clear()
                self._answers[since] = Content.json(self._document(reading, state, since))
            return self._answers[since]

    def _document(self, reading: Reading, state: str, since: float) -> dict[str, Any]:
        readings = [r for r in self._history.since(since) if r.at <= reading.at] or [reading]
        return {
            "api": API_VERSION,
            "now": reading.at,
            "history_seconds": KEPT_SECONDS,
            "server": {"state": state, "started": self._started},
            "models": models_fields(self._releases, self._plans.get),
            "swaps": [asdict(swap) for swap in reversed(self._swaps.recent())],
            **metrics_fields(readings),
        }

    def _state_name(self) -> str:
        if self._state.draining:
            return "draining"
        return "ready" if self._state.ready else "loading"

    def _plan(self, query: str) -> Content | None:
        asked = parse_qs(query)
        model = self._releases.models.get(asked.get("model", [""])[0])
        version = asked.get("version", [""])[0]
        for holding in () if model is None else model.held:
            drawn = self._plans.get(holding.path)
            if str(holding.version) == version and drawn is not None:
                return drawn.content
        return None

    def _read(self, at: float) -> Reading:
        return read_metrics(self._registry.collect(), at)

    def _phases(self, model: str) -> dict[str, float]:
        reading = self._history.newest(0.0)
        return reading.by_label(_LOAD_SECONDS, "phase", model=model)

    def _run(self) -> None:
        lower_priority()
        while not self._stop.is_set():
            try:
                self.look()
                self._history.newest(_READ_SECONDS)
            except Exception:
                # A bug of ours must not end the history, and never the serving.
                _log.exception("internal error in the live page")
            self._stop.wait(_LOOK_SECONDS)


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _since(query: str) -> float:
    """The time that is asked from; from the beginning, where it is none."""
    try:
        since = float(parse_qs(query).get("since", ["0"])[0])
    except ValueError:
        return 0.0
    return since if math.isfinite(since) else 0.0
