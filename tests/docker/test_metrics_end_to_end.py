"""Every panel and rule against a real Prometheus that scrapes a real server under load."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from sharded_infer.client import CallSettings, Client
from sharded_infer.repositories.repository import Repository
from tests.docker.dashboard_queries import (
    ROOT,
    Asked,
    alerts_without_thresholds,
    dashboards,
    families,
    panel_queries,
    recorded,
    substituted,
)
from tests.docker.dockerfile import output_of
from tests.docker.prometheus_server import NEEDS_PROMETHEUS, Prometheus, running_prometheus
from tests.support.fronts import code_of, hosts_file
from tests.support.raw_ids import publish_words
from tests.support.server_pages import page, samples
from tests.support.servers import MODEL, RunningServer, environment, good_inputs, running_server
from tests.support.shard_host_processes import (
    ShardHostProcess,
    publish_for_hosts,
    running_shard_host,
)
from tests.support.traffic import BATCH, Publisher, Shelf, ask, client_of, traffic, triton_inputs
from tests.support.waiting import until

pytestmark = NEEDS_PROMETHEUS

_LOAD_SECONDS = 8.0
_SETTLE_SECONDS = 3.0
_SWAP_SECONDS = 60.0
_POLL_SECONDS = 0.2
_CALLS_BESIDE = 8
_IMPOSSIBLE_MICROSECONDS = 1


@dataclass(frozen=True, slots=True)
class Observed:
    """What is left when the load is over: the Prometheus that watched, and the servers' pages."""

    prometheus: Prometheus
    targets: int
    until: float
    pages: dict[str, str]

    def families(self) -> set[str]:
        return {
            family.name + ("_total" if family.type == "counter" else "")
            for one in self.pages.values()
            for family in text_string_to_metric_families(one)
        }

    def empty(self, queries: list[Asked]) -> list[str]:
        """Where queries stand that can have data, and have none; all are evaluated."""
        return [
            f"{one.place}: {one.expression}"
            for one in queries
            if not self.prometheus.over_time(one.expression, self.until)
        ]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    home = tmp_path_factory.mktemp("observed")
    repository = home / "repository"
    (repository / MODEL).mkdir(parents=True)
    shelf = Shelf(home / "shelf")
    publisher = Publisher(repository, shelf)
    publisher.good()
    options = ("--workers", 2, "--poll-seconds", _POLL_SECONDS)
    with (
        _running_front(tmp_path_factory.mktemp("hosts")) as (front, replica),
        _running_shadow(home / "shadow", shelf) as shadow,
        running_server(repository, home / "stderr", *options) as server,
        running_server(
            publish_words(home / "words", "word").parents[1],
            home / "words.log",
            "--row-memory-mib",
            0,
        ) as words,
    ):
        urls = {
            "server": server.metrics_url,
            "words": words.metrics_url,
            "host": str(replica.ready["metrics_url"]),
            "shadow": shadow.metrics_url,
        }
        targets = [urlsplit(url).netloc for url in (*urls.values(), front.metrics_url)]
        with running_prometheus(home, *targets) as prometheus:
            _stop_a_replica(front, replica)
            # As the compose file's load does.
            words_of_it = ("--repository", repository, "--server", server.grpc_url, "--seconds", 2)
            script = ROOT / "docker" / "send_requests.py"
            output_of(sys.executable, script, *words_of_it, env=environment())
            with traffic(shadow, clients=1, pause=0.02):
                _load(server, publisher, words)
            pages = {name: page(url) for name, url in urls.items()}
            yield Observed(prometheus, len(targets), time.time(), pages)


@contextmanager
def _running_shadow(folder: Path, shelf: Shelf) -> Iterator[RunningServer]:
    (folder / "repository" / MODEL).mkdir(parents=True)
    versions = Publisher(folder / "repository", shelf)
    for label in ("stable", "canary"):
        Repository(folder / "repository").set_label(MODEL, label, versions.good())
    options = ("--follow", "labels:stable,canary", "--shadow", "canary", "--shadow-share", 1)
    with running_server(folder / "repository", folder / "stderr", *options) as server:
        yield server


@contextmanager
def _running_front(folder: Path) -> Iterator[tuple[RunningServer, ShardHostProcess]]:
    """A server that asks a shard host with two replicas, and one of the replicas."""
    ranker = publish_for_hosts(folder, 2, 2000)
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(running_shard_host(ranker.repository, number, folder / f"host{at}"))
            for at, number in enumerate((0, 1, 1))
        ]
        file = hosts_file(folder, {0: hosts[:1], 1: hosts[1:]})
        server = running_server(ranker.repository, folder / "front", "--shard-hosts", file)
        yield stack.enter_context(server), hosts[1]


def _stop_a_replica(front: RunningServer, replica: ShardHostProcess) -> None:
    """Lookups are late and asked of the other one, until the replica is left alone."""

    def is_left_alone() -> bool:
        # Without credit for a hedge a lookup may wait for its time to end.
        code_of(front)
        counted, host = samples(front.metrics_url), (("host", "1"),)
        return all(
            counted[f"sharded_infer_shard_{name}_total", host] > 0
            for name in ("hedges", "ejections")
        )

    # Latencies are known, and there is credit for hedges.
    for _ in range(400):
        assert code_of(front)[0] == "OK"
    os.kill(replica.process.pid, signal.SIGSTOP)
    try:
        until(is_left_alone, "it is left alone")
    finally:
        os.kill(replica.process.pid, signal.SIGCONT)


def _load(server: RunningServer, publisher: Publisher, words: RunningServer) -> None:
    """Good requests, bad ones, refused ones, and a version that comes meanwhile."""
    with (
        traffic(server, pause=0.02) as seen,
        client_of(server) as client,
        Client(words.grpc_url, CallSettings(timeout_seconds=60)) as asks_words,
    ):
        _beside(client, asks_words, _LOAD_SECONDS)
        latest = publisher.good()
        deadline = time.monotonic() + _SWAP_SECONDS
        while latest not in seen.versions() and time.monotonic() < deadline:
            _beside(client, asks_words, _POLL_SECONDS)
        _beside(client, asks_words, _LOAD_SECONDS)
    assert seen.versions() == [1, latest] and seen.errors() == []
    time.sleep(_SETTLE_SECONDS)


def _beside(client: Any, asks_words: Client, seconds: float) -> None:
    """A few requests that are not served, or have unknown ids, spread over some time."""
    for _ in range(_CALLS_BESIDE):
        ask(client, version="999")
        inputs = triton_inputs(good_inputs(BATCH))
        with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
            client.infer(MODEL, inputs, timeout=_IMPOSSIBLE_MICROSECONDS)
        asks_words.predict("words", candidates={"word": ["a", "not known"], "age": [0.0, 0.0]})
        time.sleep(seconds / _CALLS_BESIDE)


def test_queries_name_only_families_that_the_server_has(observed: Observed) -> None:
    queries = [one for name in dashboards() for one in panel_queries(name)]
    queries += [*recorded().values(), *alerts_without_thresholds()]
    named = {family for query in queries for family in families(query)}
    assert named - observed.families() == set()


def test_every_family_of_the_server_is_on_a_dashboard(observed: Observed) -> None:
    drawn = {f for name in dashboards() for one in panel_queries(name) for f in families(one)}
    ours = {name for name in observed.families() if name.startswith("sharded_infer_")}
    assert ours - drawn == set()


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_every_panel_has_data(observed: Observed, name: str) -> None:
    assert observed.empty(panel_queries(name)) == []


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_every_variable_has_choices(observed: Observed, name: str) -> None:
    queried = [v for v in dashboards()[name]["templating"]["list"] if v["type"] == "query"]
    assert [variable["name"] for variable in queried] == ["job", "instance", "model", "version"]
    for variable in queried:
        inner = substituted(variable["query"]["query"]).removeprefix("label_values(")
        series, label = inner.removesuffix(")").rsplit(", ", 1)
        values = observed.prometheus.get(f"label/{label}/values", **{"match[]": series})
        assert values, variable["name"]
        if label in ("model", "version"):
            assert values == ([MODEL, "words"] if label == "model" else ["1", "2"])


def test_the_version_that_came_is_annotated_and_no_other(observed: Observed) -> None:
    (annotation,) = dashboards()["service"]["annotations"]["list"]
    expression = substituted(annotation["expr"])
    found = observed.prometheus.get(
        "query_range",
        query=expression,
        # The first version is new as well while Prometheus knows no earlier moment.
        start=observed.prometheus.began + _LOAD_SECONDS,
        end=observed.until,
        step=1,
    )["result"]
    assert [one["metric"] for one in found] == [{"model": MODEL, "version": "2"}]


def test_every_recording_rule_has_data(observed: Observed) -> None:
    assert observed.empty(list(recorded().values())) == []
    assert [name for name in recorded() if not observed.prometheus.now(name)] == []


def test_every_part_of_every_alert_has_data(observed: Observed) -> None:
    assert observed.empty(alerts_without_thresholds()) == []


def test_no_rule_fails_to_be_evaluated(observed: Observed) -> None:
    groups = observed.prometheus.get("rules")["groups"]
    states = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert set(states.values()) == {"ok"}, states
    assert len(states) == len(recorded()) + len(alerts_without_thresholds())


def test_prometheus_saw_the_load_as_it_was(observed: Observed) -> None:
    ask_now = observed.prometheus.now
    # A scrape has a second: on a busy machine one may fail.
    all_up = [1.0] * observed.targets
    until(lambda: ask_now('up{job="sharded-infer"}') == all_up, "they are scraped")
    codes = observed.prometheus.get("label/code/values")
    assert {"OK", "NOT_FOUND", "DEADLINE_EXCEEDED"} <= set(codes)
    (refused,) = ask_now('sum(sharded_infer_requests_refused_total{reason=~"deadline|expired"})')
    assert refused >= _CALLS_BESIDE
    assert len(ask_now('sum by (version) (sharded_infer_requests_total{code="OK"}) > 0')) == 2
    failed = "job_model:sharded_infer_requests_failed:ratio_rate5m"
    assert 0.0 < max(ask_now(failed)) < 1.0


def test_promtool_finds_nothing_to_say_about_a_page(observed: Observed) -> None:
    for text in observed.pages.values():
        said = output_of("promtool", "check", "metrics", input=text, stderr=subprocess.STDOUT)
        assert said == ""
