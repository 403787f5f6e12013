import hashlib
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from serving.config.server_config import ServerConfig
from serving.control.server_state import ServerState
from serving.dashboard.answer import PageRequest
from serving.dashboard.dashboard import Dashboard
from serving.http_api.http_server import HttpServer, http_limits, listen
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.shared_state import SharedState
from serving.versions.state import AssignedVersion, DesiredState, Failure, ModelState
from tests.support.servers import PROVENANCE_TEXT, Ranker

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"
MODEL = "ranker"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Counting(CollectorRegistry):
    def __init__(self) -> None:
        super().__init__()
        self.times = 0
        self.metrics = ServerMetrics(most_versions=2)
        self.metrics.follow(MODEL, slots=2)
        self.metrics.releases(MODEL).assign(1, {1})

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        return iter(self.metrics.registry.collect())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> Counting:
    return Counting()


@pytest.fixture
def shared_state() -> SharedState:
    return SharedState(1)


@pytest.fixture
def state() -> ServerState:
    return ServerState(1)


@pytest.fixture
def dashboard(
    registry: Counting, state: ServerState, shared_state: SharedState, clock: Clock
) -> Dashboard:
    return Dashboard(registry, state, shared_state, clock=clock)


def live(dashboard: Dashboard, since: object = 0) -> dict[str, Any]:
    answer = dashboard.answer(PageRequest("GET", "/api/live", query=f"since={since}"))
    assert answer is not None and answer.status == 200
    document: dict[str, Any] = json.loads(answer.body)
    return document


def values(document: dict[str, Any], family: str) -> list[Any]:
    places = [n for n, series in enumerate(document["series"]) if series["family"] == family]
    return [document["readings"][-1]["values"][place] for place in places]


def assigned_version(
    version: int, key: int, *, ready: bool = True, path: Path = Path("/nowhere")
) -> AssignedVersion:
    manifest = path / "manifest.json"
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.exists() else ""
    return AssignedVersion(key, version, str(path), 5.0, digest, ready)


def test_who_asks_for_html_gets_the_page_and_who_does_not_gets_the_metrics(
    dashboard: Dashboard, state: ServerState
) -> None:
    with closing(
        HttpServer(
            listen("127.0.0.1", 0),
            ServerMetrics(),
            state,
            dashboard,
            limits=http_limits(ServerConfig("")),
        )
    ) as pages:
        url = f"http://127.0.0.1:{pages.server_port}/"
        with urllib.request.urlopen(url) as response:
            assert b"# HELP sharded_infer_workers" in response.read()
        request = urllib.request.Request(url, headers={"Accept": HTML})
        with urllib.request.urlopen(request) as response:  # noqa: S310
            assert response.headers["Content-Type"] == "text/html; charset=utf-8"
            assert b"<main" in response.read()
        head = urllib.request.Request(f"{url}dashboard/main.js", method="HEAD")  # noqa: S310
        with urllib.request.urlopen(head) as response:  # noqa: S310
            assert response.status == 200 and int(response.headers["Content-Length"]) > 1000
            assert response.read() == b""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dashboard", "text/html; charset=utf-8"),
        ("/dashboard/base.css", "text/css; charset=utf-8"),
        ("/dashboard/main.js", "text/javascript; charset=utf-8"),
        ("/dashboard/vendor/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
        ("/dashboard/vendor/LICENSE", "text/plain; charset=utf-8"),
    ],
)
def test_files_are_kept_by_their_tags_and_nothing_else_may_load(
    dashboard: Dashboard, path: str, kind: str
) -> None:
    first = dashboard.answer(PageRequest("GET", path))
    assert first is not None and first.status == 200
    headers = dict(first.headers)
    assert headers["Content-Type"] == kind and headers["Cache-Control"] == "no-cache"
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "script-src" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    again = dashboard.answer(PageRequest("GET", path, none_match=headers["ETag"]))
    assert again is not None and (again.status, again.body) == (304, b"")


def test_other_paths_and_methods_are_refused_or_left_to_others(dashboard: Dashboard) -> None:
    for path in (
        *("/dashboard/", "/dashboard/../pages.py", "/dashboard/dashboard.py"),
        *("/dashboard/plan", "/dashboard/vendor", "/api/other"),
    ):
        answer = dashboard.answer(PageRequest("GET", path))
        assert answer is not None and answer.status == 404 and path.encode() in answer.body
    answer = dashboard.answer(PageRequest("POST", "/api/live"))
    assert answer is not None and answer.status == 405
    assert dict(answer.headers)["Allow"] == "GET, HEAD"
    for path in ("/metrics", "/ready", "/live", "/other", "/main.js", "/base.css"):
        assert dashboard.answer(PageRequest("GET", path, accept=HTML)) is None


def test_no_file_of_the_page_names_another_host(dashboard: Dashboard) -> None:
    for path in ("/dashboard", "/dashboard/main.js", "/dashboard/page.css", "/dashboard/base.css"):
        answer = dashboard.answer(PageRequest("GET", path))
        assert answer is not None and b"://" not in answer.body


def test_fifty_pages_cost_one_look_at_the_metrics_a_second(
    dashboard: Dashboard, registry: Counting, clock: Clock
) -> None:
    with ThreadPoolExecutor(50) as pool:
        documents = list(pool.map(lambda _: live(dashboard), range(50)))
    assert registry.times == 1 and all(d == documents[0] for d in documents)
    clock.now += 1.0
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda n: live(dashboard, since=n), range(50)))
    assert registry.times == 2


def test_a_poll_gets_the_readings_after_its_last_one(dashboard: Dashboard, clock: Clock) -> None:
    first = live(dashboard)
    assert [reading["at"] for reading in first["readings"]] == [clock.now]
    for _ in range(3):
        clock.now += 2.0
        live(dashboard)
    times = [reading["at"] for reading in live(dashboard, since=first["now"])["readings"]]
    assert times == [first["now"] + 2, first["now"] + 4, first["now"] + 6]
    assert len(live(dashboard)["readings"]) == 4


@pytest.mark.parametrize("since", ["", "x", "nan", "inf", "-1e400"])
def test_a_time_that_is_none_means_from_the_beginning(dashboard: Dashboard, since: str) -> None:
    assert len(live(dashboard, since=since)["readings"]) == 1


def test_the_document_says_what_the_metrics_say(
    dashboard: Dashboard, registry: Counting, clock: Clock
) -> None:
    version = registry.metrics.version(MODEL, 1)
    version.failed("INTERNAL", 0.1)
    version.ran_batch(requests=2, samples=6, seconds=0.5, predicted=0.4)
    document = live(dashboard)
    assert values(document, "sharded_infer_requests") == [0.0, 1.0]
    assert values(document, "sharded_infer_batch_requests") == [[1.0, 2.0]]
    (batch,) = values(document, "sharded_infer_batch_samples")
    (series,) = [s for s in document["series"] if s["family"] == "sharded_infer_batch_samples"]
    assert batch[:2] == [1.0, 6.0] and sum(batch[2:]) == 1.0
    assert len(batch) == len(series["boundaries"]) + 3
    assert batch[2 + series["boundaries"].index(8.0)] == 1.0
    assert document["families"]["sharded_infer_requests"]["kind"] == "counter"


def test_the_state_is_told_at_once(
    dashboard: Dashboard, state: ServerState, registry: Counting
) -> None:
    assert live(dashboard)["server"]["state"] == "loading"
    state.set_serving(0, True)
    assert live(dashboard)["server"]["state"] == "ready"
    state.drain()
    assert live(dashboard)["server"]["state"] == "draining"
    assert registry.times == 1


def test_models_have_their_versions_names_failures_and_plans(
    dashboard: Dashboard, shared_state: SharedState, ranker: Ranker
) -> None:
    path = ranker.model.artifact.path
    model = ModelState(
        MODEL,
        published=(1, 2, 3),
        assigned=(assigned_version(1, 1, path=path), assigned_version(2, 2, ready=False)),
        failures=(Failure(3, "verify", "tower.pt2: missing", "x"),),
        names={"": 1, "stable": 1},
    )
    shared_state.post(DesiredState({MODEL: model}))
    dashboard.look()
    (told,) = live(dashboard)["models"]
    assert (told["name"], told["default"], told["published"]) == (MODEL, 1, 3)
    states = {v["version"]: (v["state"], v["names"], v["reason"]) for v in told["versions"]}
    assert states == {
        3: ("failed", [], "verify: tower.pt2: missing"),
        2: ("loading", [], ""),
        1: ("ready", ["default", "stable"], ""),
    }
    assert [v["provenance"] for v in told["versions"]] == ["", "", PROVENANCE_TEXT]
    plan = told["versions"][2]["plan"]
    assert (plan["topology"], plan["ranks"], plan["tables"]) == ("cpu:2", 2, 4)
    url, _, query = plan["url"].partition("?")
    drawing = dashboard.answer(PageRequest("GET", f"/{url}", query=query))
    assert drawing is not None and drawing.body.count(b'class="bar"') == 4
    missing = dashboard.answer(PageRequest("GET", f"/{url}", query="model=ranker&version=9"))
    assert missing is not None and missing.status == 404
