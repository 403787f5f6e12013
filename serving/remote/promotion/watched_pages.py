"""Figures of servers since a moment, from their metrics pages."""

from collections.abc import Sequence
from time import monotonic
from urllib.parse import urlsplit, urlunsplit

from serving.remote.caller import Caller
from serving.remote.promotion.comparison import Comparison
from serving.remote.promotion.decision import Unread
from serving.remote.promotion.figures import figures_of
from serving.remote.version_counts import Counts, added_counts, counts_since, read_counts
from sharded_infer.errors import InputError
from sharded_infer.repositories.promotion.record import Promotion


class WatchedPages:
    """Reads the pages of all servers, and keeps those at the start of a step."""

    def __init__(self, urls: Sequence[str], model: str, caller: Caller) -> None:
        """Take URLs of HTTP ports or metrics pages; InputError without any, or for another URL."""
        self._urls = tuple(dict.fromkeys(map(page_url, urls)))
        if not self._urls:
            raise InputError("expected the URL of one server or more, to watch their metrics pages")
        self._model, self._caller = model, caller
        self._first: dict[str, dict[int, Counts]] = {}
        self._last: dict[str, dict[int, Counts]] = {}
        self._read_at: dict[str, float] = {}

    def begin(self) -> None:
        """Restart the counts; raise InputError if a page has never been readable."""
        for url in self._urls:
            self._read(url)
        self._first = dict(self._last)

    def look(self, promotion: Promotion) -> tuple[Comparison, Unread]:
        """Figures since the start, and the server that has been unreadable for longest."""
        for url in self._urls:
            self._read(url)
        new, old = (
            figures_of(
                added_counts(
                    counts_since(self._first[url].get(version, {}), last.get(version, {}))
                    for url, last in self._last.items()
                )
            )
            for version in (promotion.version, promotion.before)
        )
        now = monotonic()
        seconds, url = max((now - read_at, url) for url, read_at in self._read_at.items())
        return Comparison(new, old, promotion.target), Unread(url, seconds)

    def _read(self, url: str) -> None:
        try:
            self._last[url] = read_counts(url, self._model, self._caller)
        except InputError:
            # The server restarts; if it was never there, the command line is wrong.
            if url not in self._last:
                raise
        else:
            self._read_at[url] = monotonic()


def page_url(url: str) -> str:
    """URL of a server's metrics page; InputError if the server's is not an HTTP URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(f"server {url!r}: expected the URL of its HTTP port, http://HOST:PORT")
    path = "/metrics" if parts.path in ("", "/") else parts.path
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
