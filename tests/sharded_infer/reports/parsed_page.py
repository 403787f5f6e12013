"""Pages of reports, parsed and drawn."""

import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

VOID = {"meta", "input", "br", "link", "img"}
Attributes = dict[str, str | None]


class ParsedPage(HTMLParser):
    """Elements of a page with the tags around them, and its texts.

    Refuses end tags that match no start tag, and attributes and identifiers that repeat.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, Attributes, tuple[str, ...]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(page)
        self.close()
        assert page.startswith("<!DOCTYPE html>\n") and not self.open
        identifiers = [a["id"] for _, a, _ in self.elements if "id" in a]
        assert len(identifiers) == len(set(identifiers))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def text(self, *tags: str) -> str:
        return "".join(text for path, text in self.texts if set(tags) <= set(path))

    def check_self_contained(self, page: str) -> str:
        """Nothing is loaded from elsewhere; returns the content security policy."""
        attributes = [a for _, a, _ in self.elements]
        assert not [a for a in attributes if a.keys() & {"src", "href", "srcset", "action"}]
        assert not [a for a in attributes if any(name.startswith("on") for name in a)]
        for marker in ("http:", "https:", "//cdn", "url(", "@import", "@font-face", "fetch("):
            assert marker not in page
        assert page.count("<script") == 1
        (policy,) = (str(a["content"]) for a in attributes if "http-equiv" in a)
        return policy


def check_drawn(page: str, folder: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not on PATH")
    file, picture = folder / "page.html", folder / "page.png"
    file.write_text(page)
    switches = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-sync"]
    switches += ["disable-background-networking", "disable-component-update"]
    switches += ["enable-logging=stderr", "window-size=1280,900", f"screenshot={picture}"]
    words = [f"--{switch}" for switch in (*switches, f"user-data-dir={folder / 'profile'}")]
    words = [chromium, *words, file.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    # The console speaks of script errors and of what the content security policy refused.
    assert "CONSOLE" not in done.stderr
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG") and struct.unpack(">II", head[16:24]) == (1280, 900)
