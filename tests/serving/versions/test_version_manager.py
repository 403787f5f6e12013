import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from prometheus_client import generate_latest

from serving.config.version_policy import parse_policy
from serving.errors import UnavailableError
from serving.host.signal_flag import SignalFlag
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.repository_watcher import WatchSettings
from serving.versions.served_versions import ServedVersions
from serving.versions.shared_state import SharedState
from serving.versions.state import WorkerReport
from serving.versions.version_installer import VersionInstaller
from serving.versions.version_manager import VersionManager
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.errors import ArtifactError, GateError, NotFoundError
from sharded_infer.repositories.repository import Repository
from tests.support.manifest_file import edit_manifest
from tests.support.servers import MODEL
from tests.support.traffic import Publisher, Shelf, flip_bit
from tests.support.waiting import until

SLOTS = 4


class Server:
    """Stores that follow one repository, without transports; each is a worker."""

    def __init__(self, publisher: Publisher, follow: str = "latest", workers: int = 1) -> None:
        self.publisher = publisher
        self.repository = Repository(publisher.repository)
        self.metrics = ServerMetrics()
        self.metrics.follow(MODEL, slots=SLOTS, labels=("stable",))
        settings = WatchSettings(parse_policy(follow), 0.0, 0, 1, None)
        self.manager = VersionManager(self.repository, SharedState(workers), self.metrics, settings)
        self.stores = [
            ServedVersions(self.repository, self.metrics, topology=None, max_batch=4)
            for _ in range(workers)
        ]
        self.watcher = self.manager.watcher()
        self.installers: list[VersionInstaller] = []

    @property
    def store(self) -> ServedVersions:
        return self.stores[0]

    def start(self) -> None:
        self.manager.load_first(self.store, [MODEL])
        self.installers = [
            self.manager.installer(store, number) for number, store in enumerate(self.stores)
        ]
        for installer in self.installers:
            installer.catch_up()
        self.watcher = self.manager.watcher()

    def settle(self, *, again: bool = False) -> None:
        self.watcher.look(again=again)
        while self.watcher.step():
            for installer in self.installers:
                installer.catch_up()
        for installer in self.installers:
            installer.catch_up()

    def meant(self, name: str = "") -> int:
        return self.store.get(MODEL, name).model.version

    def index(self) -> dict[int, tuple[str, str]]:
        return {entry.version: (entry.state, entry.reason) for entry in self.store.index()}

    def page(self) -> str:
        return generate_latest(self.metrics.registry).decode()


@pytest.fixture
def server(publisher: Publisher) -> Server:
    server = Server(publisher)
    server.start()
    return server


def test_the_latest_version_is_offered_by_its_number_too_and_nothing_else_is(
    publisher: Publisher,
) -> None:
    publisher.good()
    server = Server(publisher)
    server.start()
    assert (server.meant(), server.meant("2")) == (2, 2)
    with pytest.raises(NotFoundError, match="has no version '1' here; version 2 is served"):
        server.store.get(MODEL, "1")
    with pytest.raises(NotFoundError, match="no model 'other' is served here"):
        server.store.get("other")
    assert server.index() == {1: ("UNAVAILABLE", "not loaded: not followed"), 2: ("READY", "")}


@pytest.fixture
def pair(publisher: Publisher) -> Server:
    """Two workers, of which the first has a version that has come."""
    server = Server(publisher, workers=2)
    server.start()
    publisher.good()
    server.watcher.look()
    for _ in range(3):
        assert server.watcher.step()
        server.installers[0].catch_up()
    assert [store.is_loaded(MODEL, 2) for store in server.stores] == [True, False]
    assert server.meant() == 1 and server.index()[2][0] == "LOADING"
    return server


def test_a_version_is_offered_only_when_every_worker_has_it(pair: Server) -> None:
    with pytest.raises(NotFoundError, match="has no version '2'"):
        pair.store.get(MODEL, "2")
    pair.settle()
    assert [store.get(MODEL).model.version for store in pair.stores] == [2, 2]


def test_a_number_that_was_used_again_is_an_error_and_the_loaded_rows_are_served(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(publisher)
    server.start()
    provenance = {"note": "other rows"}
    edit_manifest(publisher.repository / MODEL / "1", lambda m: m.update(provenance=provenance))
    for _ in range(2):
        server.watcher.look()
        server.settle()
    release = server.manager.shared_state.releases()[1].models[MODEL]
    assert release.trouble.startswith("version 1 was published again under its number")
    assert [r.levelname for r in caplog.records if "published again" in r.message] == ["ERROR"]
    publisher.good()
    server.watcher.look()
    server.settle()
    assert server.meant() == 2


def test_a_worker_that_cannot_load_it_keeps_it_from_all(pair: Server) -> None:
    [*_, coming] = pair.manager.shared_state.releases()[1].models[MODEL].assigned
    assert not coming.ready
    report = WorkerReport(failed={coming.key: ("open", "there is no memory for it")})
    pair.manager.shared_state.report(1, report)
    pair.settle()
    assert pair.meant() == 1 and not pair.store.is_loaded(MODEL, 2)
    assert pair.index()[2] == ("UNAVAILABLE", "failed at open: there is no memory for it")
    assert 'load_failures_total{model="ranker",phase="open"} 1.0' in pair.page()


def test_a_worker_that_is_dead_is_not_waited_for(pair: Server) -> None:
    pair.manager.shared_state.detach(1, "killed")
    del pair.installers[1]
    pair.settle()
    assert pair.meant() == 2


def test_a_version_whose_opening_ends_a_worker_is_not_opened_by_its_successor(
    pair: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def end(path: Path, *_args: object, **_kwargs: object) -> NoReturn:
        opened.append(path)
        raise KeyboardInterrupt

    shared_state = pair.manager.shared_state
    with monkeypatch.context() as patched:
        patched.setattr(pair.stores[1].loader, "load", end)
        with pytest.raises(KeyboardInterrupt):
            pair.installers[1].catch_up()
        shared_state.detach(1, "worker 1 ended (killed by SIGFPE)")
        pair.installers[1] = pair.manager.installer(pair.stores[1], 1)
        pair.installers[1].catch_up()
    assert len(opened) == 1
    pair.settle()
    assert pair.meant() == 1
    reason = "worker 1 ended (killed by SIGFPE) while it opened the version"
    assert pair.index()[2] == ("UNAVAILABLE", f"failed at open: {reason}")
    pair.settle(again=True)
    assert pair.meant() == 2


def test_a_worker_that_comes_later_loads_what_is_offered_before_it_serves(server: Server) -> None:
    server.publisher.good()
    server.settle()
    later = ServedVersions(server.repository, server.metrics, topology=None, max_batch=4)
    installer = server.manager.installer(later)
    installer.catch_up()
    installer.check_complete()
    assert {s.model.version for s in later.loaded_versions()} == {1, 2}
    assert later.get(MODEL).model.version == 2


def test_a_worker_that_cannot_load_what_is_offered_does_not_serve(server: Server) -> None:
    later = ServedVersions(server.repository, server.metrics, topology="cpu:7", max_batch=4)
    installer = server.manager.installer(later)
    installer.catch_up()
    with pytest.raises(NotFoundError, match="no plan for topology 'cpu:7'"):
        installer.check_complete()


def test_a_failed_version_is_not_tried_again_until_asked_or_its_files_change(
    server: Server,
) -> None:
    broken = server.publisher.with_flipped_bit()
    path = server.publisher.repository / MODEL / str(broken)
    for _ in range(3):
        server.settle()
    assert server.meant() == 1
    assert "altered" in server.index()[broken][1]
    assert 'load_failures_total{model="ranker",phase="verify"} 1.0' in server.page()
    server.settle(again=True)
    assert 'load_failures_total{model="ranker",phase="verify"} 2.0' in server.page()
    table = next(path.glob("tables/*.safetensors"))
    before = table.stat()
    flip_bit(table)
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    server.settle()
    assert server.meant() == 1
    os.utime(table)
    server.settle()
    assert server.meant() == broken


def test_a_version_that_comes_to_be_there_after_its_label_is_loaded_then(
    publisher: Publisher,
) -> None:
    server = Server(publisher, "labels:stable")
    labels = publisher.repository / MODEL / "labels.json"
    labels.write_text('{"stable": 1}')
    server.start()
    labels.write_text('{"stable": 2}')
    server.settle()
    assert server.meant("stable") == 1 and "has no version 2" in server.index()[2][1]
    publisher.good()
    server.settle()
    assert server.meant("stable") == 2


def test_labels_that_cannot_be_read_change_nothing(publisher: Publisher) -> None:
    labels = publisher.repository / MODEL / "labels.json"
    labels.write_text('{"stable": 1}')
    server = Server(publisher, "labels:stable")
    server.start()
    for damage in ("[1]", '{"stable": "x"}', "{", '{"stable": 1.5}'):
        labels.write_text(damage)
        server.settle()
        assert server.meant("stable") == 1


def test_the_version_before_stays_and_older_ones_and_their_counts_go(server: Server) -> None:
    for version in range(2, 3 + SLOTS):
        server.publisher.good()
        server.settle()
        assert server.meant() == version
        loaded = {one.model.version for one in server.store.loaded_versions()}
        assert loaded == {version - 1, version}
    shown = set(re.findall(r'model_loaded\{model="ranker",version="(.)"', server.page()))
    assert shown == {str(version) for version in range(3, 3 + SLOTS)}


def test_a_place_in_the_metrics_begins_at_zero_for_its_next_version() -> None:
    metrics = ServerMetrics()
    releases = metrics.follow(MODEL, slots=2)
    releases.assign(1, set())
    metrics.version(MODEL, 1).failed("INTERNAL", 1.0)
    releases.assign(2, {1})
    metrics.version(MODEL, 2).failed("INTERNAL", 1.0)
    metrics.version(MODEL, 2).failed("INTERNAL", 1.0)
    releases.assign(3, {2})
    assert metrics.version(MODEL, 3).totals().failure.count == 0
    assert metrics.version(MODEL, 2).totals().failure.count == 2
    releases.assign(2, {2, 3})
    assert metrics.version(MODEL, 2).totals().failure.count == 2


def test_a_watcher_goes_on_from_what_its_predecessor_said(server: Server) -> None:
    broken = server.publisher.with_flipped_bit()
    server.settle()
    server.publisher.good()
    server.watcher.look()
    server.watcher.step()
    server.watcher = server.manager.watcher()
    server.settle()
    assert server.meant() == 3
    assert "altered" in server.index()[broken][1]
    assert 'load_failures_total{model="ranker",phase="verify"} 1.0' in server.page()


@pytest.mark.parametrize(
    ("breaks", "error"),
    [("with_other_golden_scores", GateError), ("without_a_tower", ArtifactError)],
)
def test_a_server_that_has_nothing_sound_to_serve_does_not_start(
    tmp_path: Path, shelf: Shelf, breaks: str, error: type[Exception]
) -> None:
    publisher = Publisher(tmp_path / "repository", shelf)
    getattr(publisher, breaks)()
    server = Server(publisher)
    with pytest.raises(error) as raised:
        server.start()
    # Frames of loading would hold the files of what was opened.
    frames = {frame.name for frame in raised.traceback}
    assert raised.value.__cause__ is None and "open_model" not in frames
    with pytest.raises(UnavailableError, match="is unavailable: version 1 failed at"):
        server.store.get(MODEL)


def test_a_server_starts_with_the_version_before_a_broken_one(publisher: Publisher) -> None:
    publisher.with_other_golden_scores()
    server = Server(publisher)
    server.start()
    assert server.meant() == 1
    assert server.index()[2][1].startswith("failed at golden: ")


def test_a_label_that_is_nowhere_is_said_at_the_start(publisher: Publisher) -> None:
    with pytest.raises(NotFoundError, match="nothing to serve; labels:stable names no version"):
        Server(publisher, "labels:stable").start()


def test_versions_that_do_not_fit_are_not_loaded(server: Server) -> None:
    server.publisher.good()
    settings = replace(server.manager.settings, spare_bytes=2**60)
    server.watcher = replace(server.manager, settings=settings).watcher()
    server.settle()
    assert server.meant() == 1
    assert server.index()[2][1].startswith("failed at memory: ranker version 2 does not fit")


def test_a_repository_that_goes_away_and_comes_back_is_followed_on(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = server.publisher.repository.rename(tmp_path / "away")
    for _ in range(3):
        server.settle()
    assert server.meant() == 1
    assert caplog.text.count("cannot be followed now") == 1
    away.rename(server.publisher.repository)
    server.publisher.good()
    server.settle()
    assert server.meant() == 2


def test_a_version_in_use_outlives_its_unloading(server: Server) -> None:
    told: list[tuple[str, int]] = []

    def note(what: str) -> Any:
        return lambda loaded_version: told.append((what, loaded_version.model.version))

    server.store.on_change(note("loaded"), note("dropped"))
    used = server.store.get(MODEL)
    for _ in range(2):
        server.publisher.good()
        server.settle()
    assert told == [("loaded", 1), ("loaded", 2), ("loaded", 3), ("dropped", 1)]
    assert used.model.version == 1
    assert "score" in used.model.run(generate_samples(used.model.spec, 2))


def test_a_running_watcher_looks_when_it_is_asked(server: Server) -> None:
    (installer,) = server.installers
    installer.start()
    stop, asked = SignalFlag(), SignalFlag()
    thread = threading.Thread(target=server.watcher.run, args=(stop, asked))
    thread.start()
    try:
        server.publisher.good()
        asked.set()
        until(lambda: server.meant() == 2, "the version is found")
    finally:
        stop.set()
        asked.set()
        thread.join()
        installer.stop()
