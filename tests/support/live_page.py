"""Chromium, for the tests of the live page and the script of its pictures."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

_SECONDS = 120.0
CHROMIUM = shutil.which("chromium")


def chromium_refusal() -> str | None:
    if CHROMIUM is None:
        return "Chromium is not installed (apt install chromium)"
    if find_spec("playwright") is None or find_spec("axe_playwright_python") is None:
        return "playwright or axe-playwright-python is not installed (the extra `dev`)"
    return None


@dataclass(slots=True)
class Watched:
    """A Playwright page, its errors in console and scripts, and the origins of its requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    origins: set[str] = field(default_factory=set)

    def text(self, selector: str) -> str:
        text: str = self.page.inner_text(selector)
        return text

    def facts(self) -> dict[str, str]:
        names = self.page.locator("#facts dt").all_inner_texts()
        return dict(zip(names, self.page.locator("#facts dd").all_inner_texts(), strict=True))

    def until(self, expression: str) -> None:
        """Wait until JavaScript holds; polled from here, as the page's policy allows no eval."""
        self.wait(lambda: self.page.evaluate(expression), expression)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        waited = 0.0
        while not condition():
            assert waited < _SECONDS, f"{what}: not after {_SECONDS} s; {self.errors}"
            self.page.wait_for_timeout(100)
            waited += 0.1


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Watched]:
    """The live page of a server in Playwright's browser, drawn once, with options of the page."""
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    page.set_default_timeout(1000 * _SECONDS)
    watched = Watched(page)

    def asked(request: Any) -> None:
        # Data in the page itself has no origin.
        if not request.url.startswith("data:"):
            watched.origins.add(urlsplit(request.url).netloc)

    page.on("console", lambda m: watched.errors.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.on("request", asked)
    try:
        page.goto(url)
        page.wait_for_selector("body[data-drawn]")
        yield watched
    finally:
        page.close()
