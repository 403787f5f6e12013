"""Brings a process to what the board says: loads versions aside, swaps names, lets versions go.

watch   sees what is new on the board; at its moment, names mean what it says (one dictionary is
        replaced), and versions that are not held any more are let go
load    loads what is held, one version after another, at low priority, and reports
"""

import logging
import threading
from pathlib import Path
from time import monotonic, sleep

from kernels.errors import LostMemoryError
from serving.background import lower_priority, paced, yielding_often
from serving.board import Board
from serving.freed_memory import give_back_freed_memory
from serving.load_phases import LoadPhases
from serving.metrics import Metrics
from serving.model_families import SERVE_PHASE
from serving.model_store import IndexEntry, ModelStore, report_dropped, report_loaded
from serving.releases import Holding, ModelReleases, Releases, Report
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress, no_progress

_log = logging.getLogger("sharded_infer")
_POLL_SECONDS = 0.02
# Between two looks at the sizes of mapped files.
_FILES_SECONDS = 0.5
# A clock that a bug had set too far ahead must not hold names back for ever.
_LONGEST_NOTICE = 1.0


class _Stopped(Exception):  # noqa: N818 - no error
    """The process ends while it loads."""


class Installer:
    """One process's share of the releases."""

    def __init__(self, store: ModelStore, board: Board, metrics: Metrics, worker: int = 0) -> None:
        """Begins with what the store holds already, and says so.

        Args:
            store: this process's.
            board: the server's.
            metrics: the server's.
            worker: this process's number.
        """
        self._store = store
        self._board = board
        self._metrics = metrics
        self._worker = worker
        self._seen = -1
        self._releases = Releases()
        self._failed: dict[int, tuple[str, str]] = {}
        self._showing = False
        # Held to say what names mean, and to report: two threads do.
        self._saying = threading.Lock()
        self._stop = threading.Event()
        self._more = threading.Event()
        self._threads: list[threading.Thread] = []
        # What was raised here, by model, the first time that each could not be loaded.
        self.errors: dict[str, Exception] = {}
        board.report(worker, Report())

    def catch_up(self, progress: Progress = no_progress) -> None:
        """Loads and offers what the board says, on the calling thread, before requests come.

        Args:
            progress: told how far loading is.
        """
        while self._look():
            self._load_held(progress)
            # Names may mean what has been loaded only now.
            self._offer()

    def check_complete(self) -> None:
        """Refuses to go on without a version that clients are told to ask for.

        Raises:
            ArtifactError, GateError: what kept this process from loading it.
        """
        for release in self._releases.models.values():
            for holding in release.held:
                if holding.ready and holding.key in self._failed:
                    raise self.errors[release.model]

    def start(self) -> None:
        """Follows the board from now on, in threads of its own, and shows it in the metrics."""
        self._showing = True
        self._show()
        for name, run in (
            ("board", self._watch),
            ("loader", self._load),
            # Of its own: a file system that does not answer holds up nothing else.
            ("files", self._watch_files),
        ):
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Ends the threads; a version that is being loaded is waited for a moment at most."""
        self._stop.set()
        self._more.set()
        for thread in self._threads:
            thread.join(1.0)

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                if self._board.sequence != self._seen and self._look():
                    self._more.set()
            except Exception:
                _log.exception("internal error in following the board")

    def _watch_files(self) -> None:
        while not self._stop.wait(_FILES_SECONDS):
            for snapshot in self._store.snapshots():
                try:
                    snapshot.model.check_files()
                except (LostMemoryError, OSError) as error:
                    self._lose(snapshot.model.name, snapshot.model.version, str(error))

    def _lose(self, model: str, version: int, reason: str) -> None:
        """Reports a version that was loaded and is sound no more; the follower takes it away."""
        held = self._releases.models[model].held if model in self._releases.models else ()
        for holding in held:
            if holding.version == version and holding.key not in self._failed:
                self._failed = {**self._failed, holding.key: (SERVE_PHASE, reason)}
                self._report()

    def _load(self) -> None:
        lower_priority()

        def check(_what: str, _done: int, _total: int) -> None:
            if self._stop.is_set():
                raise _Stopped

        while True:
            self._more.wait()
            if self._stop.is_set():
                return
            self._more.clear()
            try:
                if self._load_held(paced(check)):
                    self._offer()
                    # Some may have been given up while they were loaded.
                    self._let_go()
                give_back_freed_memory()
            except _Stopped:
                return
            except Exception:
                _log.exception("internal error in loading a version")

    def _look(self) -> bool:
        """Takes in what the board says; False: nothing new."""
        if self._board.sequence == self._seen:
            return False
        seen, releases = self._board.releases()
        if self._showing:
            sleep(min(max(0.0, releases.moment - monotonic()), _LONGEST_NOTICE))
        self._offer(releases)
        self._seen = seen
        self._let_go()
        keys = {h.key for m in releases.models.values() for h in m.held}
        self._failed = {key: told for key, told in self._failed.items() if key in keys}
        self._report()
        return True

    def _let_go(self) -> None:
        models = self._releases.models.values()
        held = {(release.model, h.version) for release in models for h in release.held}
        for snapshot in self._store.drop(held):
            name, version = snapshot.model.name, snapshot.model.version
            fields = {"model": name, "version": version}
            _log.info("unloaded %s version %d", name, version, extra=fields)
            if self._showing:
                report_dropped(snapshot)

    def _offer(self, releases: Releases | None = None) -> None:
        """Says what names mean: by new releases, or once more, after something was loaded."""
        with self._saying:
            self._releases = releases or self._releases
            models = self._releases.models
            self._store.offer({name: _names(release) for name, release in models.items()})
            for release in models.values():
                self._store.set_index(release.model, _index(release), release.absence)
            if self._showing:
                self._show()

    def _show(self) -> None:
        for model, release in self._releases.models.items():
            if self._metrics.is_followed(model):
                metrics = self._metrics.releases(model)
                metrics.serves(release.names, missing=bool(release.absence))

    def _load_held(self, progress: Progress) -> bool:
        """Loads what is held and not loaded yet; whether there was anything."""
        loaded = False
        while (missing := self._missing()) is not None:
            model, holding = missing
            with yielding_often():
                self._load_one(model, holding, progress)
            self._report()
            loaded = True
        return loaded

    def _missing(self) -> tuple[str, Holding] | None:
        for release in self._releases.models.values():
            for holding in release.held:
                known = self._store.is_loaded(release.model, holding.version)
                if not known and holding.key not in self._failed:
                    return release.model, holding
        return None

    def _load_one(self, model: str, holding: Holding, progress: Progress) -> None:
        phases = LoadPhases("open")
        metrics = self._metrics.releases(model)
        try:
            counters = metrics.version(holding.version)
            path = Path(holding.path)
            snapshot = self._store.loader.load(path, counters, phases=phases, progress=progress)
        except _Stopped:
            raise
        except Exception as error:
            if not isinstance(error, ShardedInferError):
                _log.exception(
                    "internal error in loading %s version %d", model, holding.version,
                    extra={"model": model, "version": holding.version},
                )  # fmt: skip
            self.errors.setdefault(model, error)
            self._failed = {**self._failed, holding.key: (phases.current, str(error))}
            return
        self._store.add(snapshot)
        if self._showing:
            report_loaded(snapshot)
            metrics.took(phases.seconds)

    def _report(self) -> None:
        with self._saying:
            loaded = tuple(
                holding.key
                for release in self._releases.models.values()
                for holding in release.held
                if self._store.is_loaded(release.model, holding.version)
            )
            self._board.report(self._worker, Report(loaded, dict(self._failed), self._seen))


def _names(release: ModelReleases) -> dict[str, int]:
    """What requests may say: names, and the numbers of all versions that are ready."""
    numbers = {str(h.version): h.version for h in release.held if h.ready}
    return {**numbers, **release.names}


def _index(release: ModelReleases) -> list[IndexEntry]:
    reason = "not loaded: not followed" if release.wanted else "unloaded"
    entries = {
        version: IndexEntry(release.model, version, "UNAVAILABLE", reason)
        for version in release.published
    }
    for failure in release.failures:
        reason = f"failed at {failure.phase}: {failure.reason}"
        entries[failure.version] = IndexEntry(release.model, failure.version, "UNAVAILABLE", reason)
    for holding in release.held:
        state = IndexEntry(release.model, holding.version, "READY", "")
        if not holding.ready:
            state = IndexEntry(release.model, holding.version, "LOADING", "loading")
        entries[holding.version] = state
    if release.preparing:
        entries[release.preparing] = IndexEntry(
            release.model, release.preparing, "LOADING", "fetching and verifying"
        )
    if not entries and release.absence:
        # Nothing is known of its versions, but clients are told why it does not answer.
        entries[0] = IndexEntry(release.model, 0, "UNAVAILABLE", release.absence)
    return [entries[version] for version in sorted(entries)]
