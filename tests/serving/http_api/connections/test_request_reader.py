from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.http_api.connections.request_reader import RequestReader
from serving.http_api.exchange import HttpError

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
TEXT = st.text("\r\n0a;:", max_size=40).map(str.encode)


@dataclass(frozen=True)
class Sent:
    raw: bytes
    target: str
    body: bytes
    keep_alive: bool


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    target = draw(st.sampled_from(["/", "/live", "/a?b=c"]))
    before = draw(st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]))
    headers = b"Host: x\r\n" + draw(st.sampled_from([b"", UPGRADE, b"X: \xff \t\r\n"]))
    keep_alive = draw(st.booleans())
    if not keep_alive:
        headers = headers.replace(b"Upgrade,", b"close,") if UPGRADE in headers else headers
        headers += b"" if UPGRADE in headers or b"close" in headers else b"Connection: close\r\n"
    kind = draw(st.sampled_from(["none", "length", "chunks"]))
    method = "GET" if kind == "none" else "POST"
    pieces = [] if kind == "none" else draw(st.lists(TEXT.filter(bool), max_size=5))
    body = b"".join(pieces)
    if kind == "length":
        headers += b"Content-Length: %d\r\n" % len(body)
    raw = body
    if kind == "chunks":
        headers += b"Transfer-Encoding: chunked\r\n"
        trailer = draw(st.sampled_from([b"", b"X-T: 1\r\n"]))
        raw = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"
    head = before + f"{method} {target} HTTP/1.1\r\n".encode() + headers + b"\r\n"
    return Sent(head + raw, target, body, keep_alive)


def read_all(parts: list[bytes]) -> list[Sent]:
    """Requests in bytes that come in parts, as `HttpConnection` reads them."""
    reader, found = RequestReader(16 * 1024), []
    for part in parts:
        begin = 0
        while begin < len(part):
            begin = reader.read(part, begin, len(part))
            if reader.is_complete:
                head = reader.head
                assert head is not None
                query = f"?{head.request.query}" if head.request.query else ""
                body = b"".join(reader.pieces)
                found.append(Sent(b"", head.request.path + query, body, head.keep_alive))
                if not head.keep_alive:
                    return found
                reader.next()
    return found


@given(sent=st.lists(requests(), min_size=1, max_size=5), data=st.data())
def test_requests_are_the_same_however_their_bytes_are_cut(
    sent: list[Sent], data: st.DataObject
) -> None:
    raw = b"".join(request.raw for request in sent)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=20).map(sorted))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    wanted = []
    for request in sent:
        wanted.append(Sent(b"", request.target, request.body, request.keep_alive))
        if not request.keep_alive:
            break
    assert read_all(parts) == wanted
    assert read_all([raw[i : i + 1] for i in range(len(raw))]) == wanted


POST, CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\n", b"Transfer-Encoding: chunked\r\n"
REFUSED = {
    "a bare LF after the line": b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    "a bare LF after a header": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "a bare CR in a header": b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "a space before the first header": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "a space before a colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "a zero byte": b"GET / HTTP/1.1\r\nHost: x\r\nA: a\0b\r\n\r\n",
    "a control character": b"GET / HTTP/1.1\r\nHost: x\r\nA: a\x01b\r\n\r\n",
    "a name that is no token": b"GET / HTTP/1.1\r\nHost: x\r\nA\xff: b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method that is none": b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a proxy's method": b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a byte outside ASCII in the path": b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces before the path": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space before the method": b" GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space in the path": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "both lengths": POST + CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "the same length twice": POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "a list of lengths": POST + b"Content-Length: 1, 1\r\n\r\na",
    "a length with a sign": POST + b"Content-Length: +1\r\n\r\na",
    "a length beyond all": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "another encoding": POST + b"Transfer-Encoding: gzip\r\n\r\na",
    "two encodings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "almost chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "a chunk size with a space": POST + CHUNKED + b"\r\n1 \r\na\r\n0\r\n\r\n",
    "a chunk size with a prefix": POST + CHUNKED + b"\r\n0x1\r\na\r\n0\r\n\r\n",
    "a chunk size of 17 digits": POST + CHUNKED + b"\r\n" + b"1" * 17 + b"\r\na",
    "a chunk size before a bare LF": POST + CHUNKED + b"\r\n1\na\r\n0\r\n\r\n",
    "a chunk longer than it says": POST + CHUNKED + b"\r\n1\r\nab\r\n0\r\n\r\n",
    "a chunk's endless extension": POST + CHUNKED + b"\r\n1;" + b"a" * 200_000,
    "endless trailers": POST + CHUNKED + b"\r\n0\r\n" + b"A: b\r\n" * 50_000,
    "chunks of one byte": POST + CHUNKED + b"\r\n" + b"1\r\na\r\n" * 10_000,
    "endless empty lines": b"\r\n" * 50_000,
    "endless headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000,
    "large headers": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 16_380 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A:b\r\n" * 100 + b"\r\n",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_ambiguous_or_endless_is_no_request(case: str) -> None:
    raw = REFUSED[case]
    for size in (1, 1000, 10**6):
        with pytest.raises(HttpError):
            read_all([raw[i : i + size] for i in range(0, len(raw), size)])


def test_chunks_that_are_small_on_average_are_taken_if_they_are_few() -> None:
    raw = POST + CHUNKED + b"\r\n" + b"1\r\na\r\n" * 4000 + b"0\r\n\r\n"
    assert [sent.body for sent in read_all([raw])] == [b"a" * 4000]
    long = POST + CHUNKED + b"\r\n" + (b"64\r\n" + b"a" * 100 + b"\r\n") * 20_000 + b"0\r\n\r\n"
    assert [len(sent.body) for sent in read_all([long])] == [2_000_000]
