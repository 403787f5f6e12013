"""A request's line and headers. Requests that two servers could read differently are refused."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.wording import counted
from serving.http_api.exchange import HttpError, HttpRequest

_MOST_HEADERS = 100
_VERSIONS = ("1.0", "1.1")
_TARGET = re.compile(rb"[!-~]+")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's line and headers, without the body.

    `body_bytes` is its declared length; None: it is chunked. With `expects_continue` the client
    waits for 100 Continue before it sends the body.
    """

    request: HttpRequest
    body_bytes: int | None
    keep_alive: bool
    expects_continue: bool

    @property
    def has_body(self) -> bool:
        """True if a body is announced."""
        return self.body_bytes != 0


def read_head(
    method: str,
    target: bytes,
    version: str,
    pairs: Sequence[tuple[bytes, bytes]],
    *,
    keep_alive: bool,
    most_bytes: int,
) -> RequestHead:
    """Checks a parsed head: `target` of the request's line, and headers as received.

    `most_bytes` bounds the target, names and values together.

    Raises:
        HttpError: the version is unknown, the message is ambiguous (RFC 9112, sections 3.2 and
            6.3), or there are too many headers, or too large ones.
    """
    if version not in _VERSIONS:
        raise HttpError(400, f"HTTP/{version}: expected HTTP/1.1 or HTTP/1.0")
    size = len(target) + sum(len(name) + len(value) for name, value in pairs)
    if size > most_bytes:
        raise HttpError(431, f"{counted(size, 'byte')} of headers, expected at most {most_bytes}")
    if len(pairs) > _MOST_HEADERS:
        raise HttpError(431, f"{len(pairs)} headers, expected at most {_MOST_HEADERS}")
    if not _TARGET.fullmatch(target):
        raise HttpError(400, "the request's target: expected ASCII characters without spaces")
    headers: dict[str, str] = {}
    for name, value in pairs:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        if key not in headers:
            headers[key] = text
        elif key == "host":
            raise HttpError(400, "expected one header Host, got several")
        else:
            headers[key] = f"{headers[key]}, {text}"
    is_new = version == "1.1"
    if is_new and "host" not in headers:
        raise HttpError(400, "HTTP/1.1: expected a header Host")
    path, _, query = target.decode("latin-1").partition("?")
    return RequestHead(
        HttpRequest(method, path, query, headers),
        _body_bytes(headers, chunks=is_new),
        keep_alive and is_new,
        is_new and headers.get("expect", "").lower() == "100-continue",
    )


def _body_bytes(headers: dict[str, str], *, chunks: bool) -> int | None:
    encoding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if encoding is None:
        # The parser has read the same digits, and refused all else.
        return 0 if length is None else int(length)
    if length is not None:
        # A proxy may trust the other header, which would allow request smuggling.
        raise HttpError(400, "expected Content-Length or Transfer-Encoding, got both")
    if not chunks or encoding.lower() != "chunked":
        raise HttpError(400, "Transfer-Encoding: expected chunked, in HTTP/1.1")
    return None
