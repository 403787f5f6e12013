"""Compressed messages of gRPC calls, inflated up to a limit."""

import zlib

from kernels.wording import counted
from serving.status import Status, StatusCode

# `wbits` of zlib for gRPC's encodings.
_WINDOWS = {"gzip": 31, "deflate": 15}


def plain_message(message: bytes, encoding: str, most: int) -> bytes | Status:
    """Inflates a message to at most `most` bytes, or returns the refusal."""
    if encoding == "identity":
        return message
    inflater = zlib.decompressobj(_WINDOWS[encoding])
    try:
        plain = inflater.decompress(message, most + 1)
    except zlib.error as error:
        return Status(StatusCode.INVALID_ARGUMENT, f"the message is no {encoding}: {error}")
    if len(plain) > most:
        words = f"the message has more than {counted(most, 'byte')} once inflated"
        return Status(StatusCode.RESOURCE_EXHAUSTED, words)
    if not inflater.eof:
        return Status(StatusCode.INVALID_ARGUMENT, f"the message's {encoding} is cut off")
    return plain
