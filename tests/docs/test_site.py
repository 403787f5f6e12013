"""`make site`: the same files twice; its pages in Chromium, wide and narrow, light and dark."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.live_page import CHROMIUM, chromium_refusal
from tests.support.static_site import static_site


@dataclass
class SitePage(HTMLParser):
    """A page: what `#` may name in it, its links, and the scripts, styles and pictures it loads."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    assets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        elif tag == "link" and named.get("rel") in ("stylesheet", "icon"):
            self.assets.append(named["href"])
        elif "src" in named:
            self.assets.append(named["src"])


ROOT = Path(__file__).parents[2]
# Of pages of the repository that lie outside docs/.
ELSEWHERE = ("architecture.html", "changes.html", "contributing.html", "index.html", "format.html")
MOST_BYTES = 300_000
WIDE, NARROW = 1280, 390
_REFUSAL = chromium_refusal()
in_chromium = pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or "")


def build(target: Path) -> Path:
    keeps = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(target)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**keeps, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    # Whatever is amiss is a warning, and warnings are errors.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, SitePage]:
    return {path: SitePage(path) for path in sorted(site.rglob("*.html"))}


def test_two_builds_have_the_same_bytes(site: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    contents = [
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (site, again)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) > 60
    # Python has kept what it made of the site's own code beside it.
    assert not [path for path in contents[0] if path.suffix == ".pyc"]


def test_every_page_is_in_the_site(site: Path, pages: dict[Path, SitePage]) -> None:
    names = {*ELSEWHERE, *(f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md"))}
    assert len(names) > 35
    assert {site / name for name in names} - pages.keys() == set()


def test_no_link_or_anchor_is_broken(site: Path, pages: dict[Path, SitePage]) -> None:
    broken = []
    checked = 0
    for path, page in pages.items():
        for link in [*page.links, *page.assets]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "data"):
                continue
            # The page for addresses that do not exist is shown at any of them.
            above = site if parts.path.startswith("/") else path.parent
            target = (above / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            checked += 1
            anchors = pages[target].anchors if target in pages else {""}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append((path.name, link))
    assert broken == []
    assert checked > 3000


def test_no_page_asks_another_server_for_anything(pages: dict[Path, SitePage]) -> None:
    asked = {asset for page in pages.values() for asset in page.assets}
    assert {asset for asset in asked if urlsplit(asset).netloc} == set()
    assert len(asked) > 10


def test_the_python_reference_has_all_public_names(pages: dict[Path, SitePage], site: Path) -> None:
    import sharded_infer
    import sharded_infer.client

    for module, name in ((sharded_infer, "sharded_infer"), (sharded_infer.client, "client")):
        page = pages[site / "api" / f"{name}.html"]
        assert {f"{module.__name__}.{public}" for public in module.__all__} <= page.anchors
    names = pages[site / "python-api.html"]
    for public in sharded_infer.__all__:
        assert f"api/sharded_infer.html#sharded_infer.{public}" in names.links


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with static_site(site) as address:
        yield address


@in_chromium
@pytest.mark.parametrize(("theme", "width"), [("light", WIDE), ("dark", NARROW)])
def test_every_page_is_sound_in_chromium(
    browser: Any, address: str, site: Path, pages: dict[Path, SitePage], theme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    amiss: list[object] = []
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    requests: list[Any] = []
    page.on("console", lambda message: amiss.append((page.url, message.text)))
    page.on("pageerror", lambda error: amiss.append((page.url, str(error))))
    page.on("requestfinished", lambda request: requests.append(request))
    # Each page is opened by somebody who was on none before.
    context.new_cdp_session(page).send("Network.setCacheDisabled", {"cacheDisabled": True})
    for path in pages:
        requests.clear()
        page.goto(f"{address}/{path.relative_to(site)}", wait_until="networkidle")
        # As they were sent, headers included.
        sizes = [request.sizes() for request in requests]
        size = sum(one["responseBodySize"] + one["responseHeadersSize"] for one in sizes)
        if size > MOST_BYTES:
            amiss.append((path.name, f"{size} bytes"))
        origins = {urlsplit(r.url).netloc for r in requests if not r.url.startswith("data:")}
        if origins != {urlsplit(address).netloc}:
            amiss.append((path.name, origins))
        if page.evaluate("document.documentElement.scrollWidth") > width:
            amiss.append((path.name, "is wider than the window"))
        amiss += [
            (path.name, one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"])
            for one in axe.run(page).response["violations"]
        ]
    context.close()
    assert amiss == []
