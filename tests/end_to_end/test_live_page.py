"""The live page in Chromium: figures, states, keyboard, both themes, and nobody else asked."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.live_page import Watched, chromium_refusal, opened
from tests.support.server_pages import counted
from tests.support.server_processes import free_port
from tests.support.servers import MODEL, RunningServer, good_inputs, infer_request, running_server
from tests.support.traffic import Publisher, Shelf, traffic

# What stands where there is no figure.
NOTHING = "\N{EN DASH}"
_REFUSAL = chromium_refusal()
pytestmark = pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or "")


@pytest.fixture(scope="module")
def live_publisher(tmp_path_factory: pytest.TempPathFactory, shelf: Shelf) -> Publisher:
    publisher = Publisher(tmp_path_factory.mktemp("live") / "repository", shelf)
    publisher.good()
    return publisher


@pytest.fixture(scope="module")
def live_server(
    live_publisher: Publisher, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("live_server") / "stderr"
    options = ("--workers", 2, "--poll-seconds", 0.2)
    with running_server(live_publisher.location, log, *options) as server:
        yield server
    assert "internal error" not in log.read_text()


@pytest.fixture
def live(browser: Any, live_server: RunningServer) -> Iterator[Watched]:
    """The page; at the end nothing went wrong in it, and no other origin was asked."""
    with opened(browser, live_server.http_url) as watched:
        yield watched
    assert watched.errors == []
    assert watched.origins == {live_server.metrics_url.split("/")[2]}


def test_the_page_counts_what_the_metrics_page_counts_as_requests_come(
    live: Watched, live_server: RunningServer
) -> None:
    with traffic(live_server, clients=2, pause=0.02):
        live.until("parseFloat(document.querySelector('#facts dd').textContent) > 5")
        facts = live.facts()
        assert facts["p50"].endswith(("µs", "ms")) and facts["Samples"].endswith("/s")
        assert facts["Workers"] == "2" and facts["Errors"].endswith("%")
        assert live.page.locator("#chart-kept").is_hidden()
        live.wait(
            lambda: counted(live_server, "sharded_infer_requests_total") > 20,
            "more requests are answered",
        )
    total = counted(live_server, "sharded_infer_requests_total")

    def shown() -> int:
        texts = live.page.locator("tr[data-version] td:last-child").all_inner_texts()
        return sum(int(text.replace(",", "")) for text in texts if text != NOTHING)

    live.wait(lambda: shown() == total, "the page counts them all")
    assert counted(live_server, "sharded_infer_requests_total") == total
    described = live.page.locator("#requests .plot").first.get_attribute("aria-label")
    assert described.startswith("Latency: now p50 ") and NOTHING not in described


def test_an_error_is_shown_by_its_code(live: Watched, live_server: RunningServer) -> None:
    wrong = {**good_inputs(1), "user": good_inputs(1)["user"] + 1000}
    with live_server.stub() as stub, pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
        stub.ModelInfer(infer_request(wrong), timeout=10)
    live.until("document.querySelector('#requests').textContent.includes('INVALID_ARGUMENT')")


def test_quantiles_are_those_of_prometheus(live: Watched) -> None:
    """Histograms of known quantiles, by the page's own module."""
    script = """async () => {
      const { Readings, distribution, quantile } = await import("/dashboard/readings.js");
      const readings = new Readings();
      const one = { family: "f", labels: { version: "1" }, boundaries: [1, 2, 4] };
      const other = { family: "f", labels: { version: "2" }, boundaries: [1, 3, 4] };
      const document = (at, ...values) => ({ now: at, history_seconds: 600,
        series: [one, other], readings: [{ at, values }] });
      readings.add(document(100, [5, 9, 5, 0, 0, 0], [0, 0, 0, 0, 0, 0]));
      readings.add(document(110, [105, 99, 5, 100, 0, 0], null));
      const pair = readings.windows(0).at(-1);
      const of = distribution(readings.find("f", { version: "1" }), pair);
      const shares = [0.25, 0.5, 1].map((share) => quantile(of, share));
      // Restarted: the counter is smaller than before.
      readings.add(document(120, [10, 9, 0, 0, 10, 0], null));
      const anew = distribution(readings.find("f"), readings.windows(0).at(-1));
      const none = quantile({ total: 0, buckets: [] }, 0.5);
      return [of.total, shares, anew.total, quantile(anew, 0.5), none];
    }"""
    assert live.page.evaluate(script) == [100, [1.25, 1.5, 2.0], 10, 3.0, None]


def test_the_plan_is_drawn_with_a_bar_for_each_rank_and_its_parts_say_what_they_are(
    live: Watched,
) -> None:
    live.page.wait_for_selector("#plan figure")
    assert "cpu:2: 2 ranks, 4 tables" in live.text("#plan-words")
    assert live.page.locator("#plan figure").count() == 2
    assert live.page.locator("#plan #bytes .bar").count() == 2
    part = live.page.locator("#plan #bytes .bar i").first
    assert part.bounding_box()["width"] > 20
    part.hover()
    assert "rows" in live.text("#tip")


def test_a_chosen_theme_is_remembered_and_the_system_is_followed_otherwise(
    browser: Any, live_server: RunningServer
) -> None:
    def background(watched: Watched) -> str:
        script = "getComputedStyle(document.body).backgroundColor"
        colour: str = watched.page.evaluate(script)
        return colour

    with opened(browser, live_server.http_url, color_scheme="dark") as watched:
        assert background(watched) == "rgb(20, 23, 27)"
        watched.page.select_option("#theme", "light")
        assert background(watched) == "rgb(255, 255, 255)"
        watched.page.reload()
        assert background(watched) == "rgb(255, 255, 255)"
        assert watched.page.input_value("#theme") == "light"
        watched.page.select_option("#theme", "")
        assert background(watched) == "rgb(20, 23, 27)"
        assert watched.errors == []


def test_all_controls_are_reached_by_the_keyboard_and_the_focus_is_seen(live: Watched) -> None:
    live.page.wait_for_selector("#plan figure")
    # Charts that are shown once there is something to show.
    for chart in ("cpu", "memory", "ranks"):
        live.until(f"!document.getElementById('chart-{chart}').closest('figure').hidden")
    script = """() => {
      const at = document.activeElement, style = getComputedStyle(at);
      const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
      return [at.id || at.className || at.textContent, seen];
    }"""
    reached: list[tuple[str, bool]] = []
    for _ in range(80):
        live.page.keyboard.press("Tab")
        if live.page.evaluate("document.activeElement === document.body"):
            break
        name, seen = live.page.evaluate(script)
        reached.append((name, seen))
    names = [name for name, _ in reached]
    assert names[:4] == ["skip", "span", "pause", "theme"]
    assert names.count("Table") == live.page.locator(".chart button:visible").count() >= 10
    assert {"plan-version", "scroll", "/api/live", "/metrics", "uPlot, MIT"} <= set(names)
    assert [name for name, seen in reached if not seen] == []


def test_enter_shows_a_chart_as_a_table(live: Watched) -> None:
    button = live.page.locator("figure", has=live.page.locator("#chart-queue")).get_by_role(
        "button"
    )
    button.focus()
    live.page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    table = live.page.get_by_role("region", name="Queue, as a table")
    assert table.locator("thead th").all_inner_texts()[:2] == ["Time", "waiting"]
    assert table.locator("tbody tr").count() >= 1
    live.page.keyboard.press("Enter")
    assert not table.is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_page(
    browser: Any, live_server: RunningServer, theme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    size = {"width": width, "height": 844}
    with (
        traffic(live_server, clients=1, pause=0.02),
        opened(browser, live_server.http_url, color_scheme=theme, viewport=size) as watched,
    ):
        watched.page.wait_for_selector("#plan figure")
        watched.page.locator(".chart button").first.click()
        violations = Axe().run(watched.page).response["violations"]
        found = [(v["id"], [node["target"] for node in v["nodes"]][:5]) for v in violations]
        assert found == []
        assert watched.page.evaluate("document.documentElement.scrollWidth") == width
        assert watched.errors == []


def test_swaps_and_failures_come_up_with_their_reason(
    live: Watched, live_publisher: Publisher
) -> None:
    good = live_publisher.good()
    live.until(f"document.querySelector('#swaps').textContent.includes('{MODEL} {good}is default')")
    live.until(f"document.querySelector('tr[data-version=\"{MODEL} {good}\"] .mark-default')")
    broken = live_publisher.without_a_tower()
    live.until("document.querySelector('#swaps').textContent.includes('tower.pt2: missing')")
    row = live.page.locator(f'tr[data-version="{MODEL} {broken}"]')
    assert row.locator("td").first.inner_text() == "failed"
    loaded = live.page.locator("#swaps li", has_text="loaded").first.inner_text()
    assert "warm up" in loaded and "golden" in loaded
    options = live.page.locator("#plan-version option").all_inner_texts()
    assert f"{MODEL} {good}" in options and f"{MODEL} {broken}" not in options


@contextmanager
def started(location: str, log: Path, port: int) -> Iterator[RunningServer]:
    # The test ends it once it has seen that it drains.
    options = ("--http-port", port, "--grace-seconds", 600)
    with running_server(location, log, *options, exit_code=None) as server:
        yield server
        server.process.kill()


def test_the_page_says_that_a_server_drains_is_gone_and_is_back(
    browser: Any, publisher: Publisher, tmp_path: Path
) -> None:
    port = free_port()
    with (
        started(publisher.location, tmp_path / "log", port) as server,
        opened(browser, server.http_url) as watched,
    ):
        state = "document.getElementById('state').textContent"
        assert watched.text("#state") == "Ready"
        assert watched.page.locator("#state").get_attribute("role") == "status"
        os.kill(server.process.pid, signal.SIGTERM)
        watched.until(f"{state}.startsWith('Draining')")
        server.process.kill()
        server.process.wait(30)
        watched.until(f"{state}.startsWith('The server does not answer since')")
        assert "The figures are of" in watched.text("#stale")
        assert watched.page.title().startswith("The server does not answer")
        with started(publisher.location, tmp_path / "second", port):
            watched.until(f"{state} === 'Ready'")
            assert not watched.page.locator("#stale").is_visible()
        # Chromium itself reports the polls that failed; nothing else does.
        assert [e for e in watched.errors if "Failed to load resource" not in e] == []
