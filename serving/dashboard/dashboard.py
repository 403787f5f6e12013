"""The live page: its paths, and the thread that updates its history.

    /, /dashboard        the page
    /dashboard/...       its files, and the drawings of plans
    /api/live?since=T    the page's data: the present state, and the readings after T

Requests only read. A reading of the metrics is taken at most once a second. The thread reads and
draws plans.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from time import time
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry

from serving.control.server_state import ServerState
from serving.dashboard.answer import HTML, Answer, Content, PageRequest, answered, refused
from serving.dashboard.live_document import API_VERSION, metrics_fields, models_fields
from serving.dashboard.plans import Plans
from serving.dashboard.reading import KEPT_SECONDS, History, Reading, read_metrics
from serving.dashboard.swaps import Swaps
from serving.host.background import lower_priority
from serving.versions.shared_state import SharedState
from serving.versions.state import DesiredState
from sharded_infer.reports.html.style import BASE_STYLE
from sharded_infer.reports.plan.style import DRAWING_STYLE, TIP_SCRIPT

_log = logging.getLogger("sharded_infer")
# Between checks of the shared state, whose 8-byte sequence tells of changes.
_LOOK_SECONDS = 0.5
# Between readings while nobody views the page.
_READ_SECONDS = 5.0
_STOP_SECONDS = 1.0
_LOAD_SECONDS = "sharded_infer_version_load_seconds"
# Distinct times of requests, answered from memory until the next reading.
_MOST_ANSWERS = 16
_CSS = "text/css; charset=utf-8"
_JAVASCRIPT = "text/javascript; charset=utf-8"
_PAGE = "page.html"
_KINDS = {".html": HTML, ".css": _CSS, ".js": _JAVASCRIPT, "": "text/plain; charset=utf-8"}


class Dashboard:
    """The live page of one server, in the process that answers HTTP. Thread-safe."""

    def __init__(
        self,
        registry: CollectorRegistry,
        state: ServerState,
        shared_state: SharedState,
        *,
        topology: str | None = None,
        hosts: Callable[[], list[dict[str, Any]]] = list,
        clock: Callable[[], float] = time,
    ) -> None:
        """Reads the page's files; `start` begins the history.

        Without a topology, each version's first plan is drawn. `hosts` returns this process's shard
        hosts with the states of their replicas, `clock` seconds since 1970.
        """
        self._state = state
        self._shared_state = shared_state
        self._hosts = hosts
        self._clock = clock
        self._started = clock()
        self._assets = _read_assets()
        self._history = History(
            lambda at, before: read_metrics(registry.collect(), at, before), clock
        )
        self._swaps = Swaps()
        self._plans = Plans(topology)
        self._seen = -1
        self._releases = DesiredState()
        # By requested time: all answers are of the same newest reading and state.
        self._answers: dict[float, Content] = {}
        self._answered: tuple[object, ...] = ()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    def start(self) -> None:
        """Starts the history's thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops it; waits at most a moment for an unfinished drawing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def answer(self, request: PageRequest) -> Answer | None:
        """Answer to a request; None for other paths. `/` is the page if HTML is accepted."""
        content = self._content(request)
        if content is None:
            if request.path.startswith(("/dashboard", "/api/")):
                return refused(request, 404, f"no page {request.path}")
            return None
        if request.method not in {"GET", "HEAD"}:
            return refused(request, 405, f"{request.method}: expected GET or HEAD")
        return answered(request, content)

    def look(self) -> None:
        """Reads the shared state on the thread; cheap if nothing has changed."""
        if self._shared_state.sequence == self._seen:
            return
        self._seen, releases = self._shared_state.releases()
        self._swaps.see(releases, self._clock(), self._phases)
        self._releases = releases
        self._plans.draw(h for model in releases.models.values() for h in model.assigned)

    def _content(self, request: PageRequest) -> Content | None:
        path = request.path
        if path == "/dashboard" or (path == "/" and "text/html" in request.accept):
            return self._assets[_PAGE]
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
            if [*map(id, self._answered)] != [*map(id, about)]:
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
            "hosts": self._hosts(),
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
        for assigned_version in () if model is None else model.assigned:
            drawn = self._plans.get(assigned_version.path)
            if str(assigned_version.version) == version and drawn is not None:
                return drawn.content
        return None

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


def _since(query: str) -> float:
    """Start time of a request; the beginning if it is invalid."""
    try:
        since = float(parse_qs(query).get("since", ["0"])[0])
    except ValueError:
        return 0.0
    return since if math.isfinite(since) else 0.0


def _read_assets() -> dict[str, Content]:
    """The page's own files, and shared ones, by path below `/dashboard/`; no path leads out."""
    home = files("serving.dashboard") / "static"
    assets = {
        "base.css": Content.kept(_CSS, (BASE_STYLE + DRAWING_STYLE).encode()),
        "plan_tip.js": Content.kept(_JAVASCRIPT, TIP_SCRIPT.encode()),
    }
    for folder, prefix in ((home, ""), (home / "vendor", "vendor/")):
        for file in folder.iterdir():
            _, dot, suffix = file.name.rpartition(".")
            kind = _KINDS.get(dot + suffix if dot else "")
            if file.is_file() and kind is not None:
                assets[prefix + file.name] = Content.kept(kind, file.read_bytes())
    return assets
