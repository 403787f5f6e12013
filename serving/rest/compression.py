"""Bodies in gzip and deflate, never larger than a body may be."""

import zlib

from sharded_infer.errors import RequestError, RequestTooLargeError

# zlib's window bits for each encoding: HTTP's deflate is zlib's own format.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
# Smaller answers are sent as they are.
_LEAST_BYTES = 1024
# Scores hardly shrink more at higher levels.
_LEVEL = 1


def inflate(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """A request's body as it was before its client compressed it.

    Args:
        body: as it came.
        encoding: the header Content-Encoding; empty or "identity": not compressed.
        most_bytes: the size a body may have.

    Raises:
        RequestError: an unknown encoding, or a body that is not in it.
        RequestTooLargeError: it would be larger than allowed.
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
    """The encoding of an answer.

    Args:
        accepted: the request's header Accept-Encoding.

    Returns:
        "gzip" or "deflate"; empty: the client takes neither.
    """
    wanted = set()
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}:
            wanted.add(name.strip())
    return next((name for name in _WINDOW_BITS if name in wanted), "")


def deflate(body: bytes, encoding: str) -> bytes | None:
    """An answer's body, compressed.

    Args:
        body: its bytes.
        encoding: from `chosen_encoding`.

    Returns:
        None: it is to be sent as it is.
    """
    if not encoding or len(body) < _LEAST_BYTES:
        return None
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return stream.compress(body) + stream.flush()
