"""The built site as its files have it: what pages link to, ask for and show."""

from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from markdown_it import MarkdownIt

# What a page shows of its Markdown, by the tokens of a parser that reads as GitHub does.
_BLOCKS = {
    "bullet_list_open": "ul",
    "code_block": "pre",
    "em_open": "em",
    "fence": "pre",
    "image": "img",
    "list_item_open": "li",
    "ordered_list_open": "ol",
    "strong_open": "strong",
    "table_open": "table",
    "tr_open": "tr",
}
_HEADINGS = ("h1", "h2", "h3", "h4")


@dataclass
class SitePage(HTMLParser):
    """A page of the site.

    Attributes:
        anchors: what `#` may name.
        links: what its links point at.
        assets: what it asks for by itself: scripts, styles, pictures.
        shown: how many lists, tables and others its text has.
        first_numbers: that its numbered lists begin with.
    """

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    assets: list[str] = field(default_factory=list)
    shown: Counter[str] = field(default_factory=Counter)
    first_numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Reads it."""
        super().__init__()
        self._in_article = False
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what an element is for."""
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        elif tag == "link" and named.get("rel") in ("stylesheet", "icon"):
            self.assets.append(named["href"])
        elif "src" in named:
            self.assets.append(named["src"])
        self._in_article = self._in_article or tag == "article"
        if self._in_article and tag in {*_BLOCKS.values(), *_HEADINGS}:
            self.shown[tag] += 1
        if self._in_article and tag == "ol":
            self.first_numbers.append(int(named.get("start", "1")))

    def handle_endtag(self, tag: str) -> None:
        """Notes the end of the text."""
        self._in_article = self._in_article and tag != "article"


def site_pages(site: Path) -> dict[Path, SitePage]:
    """All pages of a site, by their paths."""
    return {path: SitePage(path) for path in sorted(site.rglob("*.html"))}


def markdown_blocks(text: str) -> tuple[Counter[str], list[int]]:
    """How many lists, tables and others a page's Markdown has, and its lists' first numbers."""
    shown: Counter[str] = Counter()
    first_numbers = []
    for block in MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        for token in (block, *(block.children or ())):
            if token.type == "heading_open":
                shown[token.tag] += 1
            elif token.type in _BLOCKS:
                shown[_BLOCKS[token.type]] += 1
            if token.type == "ordered_list_open":
                first_numbers.append(int(token.attrGet("start") or 1))
    return shown, first_numbers
