"""Answers of the live page's paths, independent of the HTTP server."""

import hashlib
import json
from dataclasses import dataclass

# Scripts, styles and data from this server alone; nothing may frame the page. Elements' style
# attributes may be inline: a plan's drawing sets its widths with them.
_POLICY = (
    "default-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
_SECURITY = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page, with the headers `Accept` and `If-None-Match`."""

    method: str
    path: str
    query: str = ""
    accept: str = ""
    none_match: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; headers include Content-Length, and the body is empty for HEAD."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a MIME type, with an entity tag for revalidation; empty: not cacheable."""

    kind: str
    body: bytes
    tag: str = ""

    @staticmethod
    def kept(kind: str, body: bytes) -> "Content":
        """Content that clients may cache if they revalidate it."""
        return Content(kind, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    @staticmethod
    def json(value: object) -> "Content":
        """A JSON value that must not be cached."""
        return Content("application/json", json.dumps(value, separators=(",", ":")).encode())


def answered(request: PageRequest, content: Content) -> Answer:
    """Answer to GET or HEAD."""
    keeping = "no-cache" if content.tag else "no-store"
    headers = [("Cache-Control", keeping), ("Vary", "Accept"), *_SECURITY]
    if content.tag:
        headers.append(("ETag", content.tag))
    if content.tag and content.tag in request.none_match:
        return Answer(304, tuple(headers), b"")
    headers += [("Content-Type", content.kind), ("Content-Length", str(len(content.body)))]
    return Answer(200, tuple(headers), b"" if request.method == "HEAD" else content.body)


def refused(request: PageRequest, status: int, reason: str) -> Answer:
    """An error answer, 404 or 405."""
    body = f"{reason}\n".encode()
    headers = [("Content-Type", TEXT), ("Content-Length", str(len(body))), *_SECURITY]
    if status == 405:
        headers.append(("Allow", "GET, HEAD"))
    return Answer(status, tuple(headers), b"" if request.method == "HEAD" else body)
