"""Gzip and deflate bodies, decompressed within the body limit."""

import zlib

from sharded_infer.errors import RequestError, RequestTooLargeError

# zlib's window bits for each encoding: HTTP's deflate is zlib's own format.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
# Smaller answers are not compressed.
_LEAST_BYTES = 1024
# Higher levels hardly shrink scores further.
_LEVEL = 1


def inflate(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """Decompresses a request's body, by its Content-Encoding (empty or "identity": none).

    Raises:
        RequestError: the encoding is unknown, or the body is not in it.
        RequestTooLargeError: the decompressed body exceeds `most_bytes`.
    """
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in _WINDOW_BITS:
        raise RequestError(f"Content-Encoding: expected gzip or deflate, got {encoding[:100]!r}")
    stream = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        plain = stream.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise RequestError(f"the body is no {encoding}: {error}") from error
    if len(plain) > most_bytes:
        raise RequestTooLargeError(
            f"the body is more than {most_bytes} bytes when it is decompressed"
        )
    if not stream.eof or stream.unused_data:
        raise RequestError(
            f"the body is no {encoding}: it ends too early, or goes on after its end"
        )
    return plain


def chosen_encoding(accepted: str) -> str:
    """Encoding of an answer: gzip or deflate, or empty if the header accepts neither."""
    wanted = set()
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}:
            wanted.add(name.strip())
    return next((name for name in _WINDOW_BITS if name in wanted), "")


def deflate(body: bytes, encoding: str) -> bytes | None:
    """Compresses an answer's body by `chosen_encoding`; None if it should stay uncompressed."""
    if not encoding or len(body) < _LEAST_BYTES:
        return None
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return stream.compress(body) + stream.flush()
