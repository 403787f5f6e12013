"""Serialization of an answer in HTTP/1.1."""

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from serving.http_api.exchange import HttpAnswer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS = (204, 304)


def answer_bytes(answer: HttpAnswer, *, is_head: bool, close: bool, now: float) -> bytes:
    """Head and body (none for HEAD) in one piece, so that they leave in one segment."""
    named = {name.lower() for name, _ in answer.headers}
    lines = [_first_lines(answer.status, int(now))]
    lines += [f"{name}: {value}\r\n" for name, value in answer.headers]
    if answer.kind and "content-type" not in named:
        lines.append(f"content-type: {answer.kind}\r\n")
    has_body = answer.status not in _BODILESS
    if has_body and "content-length" not in named:
        lines.append(f"content-length: {len(answer.body)}\r\n")
    lines.append("connection: close\r\n\r\n" if close else "\r\n")
    head = "".join(lines).encode("latin-1")
    return head if is_head or not has_body else head + answer.body


@lru_cache(64)
def _first_lines(status: int, second: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\ndate: {formatdate(second, usegmt=True)}\r\n"
