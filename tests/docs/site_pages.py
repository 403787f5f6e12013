"""The built site as its files have it: what pages link to and ask for."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path


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


def site_pages(site: Path) -> dict[Path, SitePage]:
    """All pages of a site, by their paths."""
    return {path: SitePage(path) for path in sorted(site.rglob("*.html"))}
