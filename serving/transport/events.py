"""Events of calls, from the compiled transport."""

import binascii
import ctypes
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from serving.abi import transport as abi
from serving.abi.transport import EventKind

EVENT = np.dtype(abi.Event)
_ENCODINGS = ("identity", "gzip", "deflate")  # by Encoding
_FETCHED = 256
_LENGTHS = struct.Struct("=II")
Metadata = tuple[tuple[str, str | bytes], ...]


_KINDS = tuple(EventKind)


class Event(NamedTuple):
    """An event of a call: its `place` counts from 0, and its message is as sent, or empty.

    Attributes:
        method: position of its method.
        encoding: of the message: identity, gzip or deflate.
        seconds_left: to the client's deadline; None if it has none.
        is_drawn: the call is sampled for tracing.
    """

    kind: EventKind
    call: int
    method: int
    message: bytes
    encoding: str
    metadata: Metadata
    peer: str
    seconds_left: float | None
    place: int
    is_drawn: bool = False


class EventReader:
    """Fetches events for one thread; `count` are those of the last step, taken ones included."""

    def __init__(
        self,
        fetch: Callable[[int, int, int, int], int],
        take: Callable[..., Iterable[int]] | None = None,
        *,
        read_headers: Callable[[bytes], tuple[Metadata, str]] | None = None,
    ) -> None:
        """Starts empty; `fetch` is that of an `Http2Server`.

        `take`, if any, takes events by the address and number of their structs and a function of
        an event's position to its method and metadata, and returns the positions of the others, or
        -1 - position of a drawn one. `read_headers` is `grpc_metadata` by default, and
        `http_headers` for a server of HTTP/1.1.
        """
        self._read_headers = read_headers or grpc_metadata
        self._fetch = fetch
        self._take = take
        self.count = 0
        self._events = np.zeros(_FETCHED, EVENT)
        self._address = self._events.ctypes.data
        self._held = 0

    def fetch(self, milliseconds: int) -> Sequence[Event] | None:
        """Sends held replies, waits for events and returns those not taken.

        Returns None when the server has ended.
        """
        count = self._fetch(self._address, self._held, _FETCHED, milliseconds)
        self._held = self.count = max(0, count)
        if count < 0:
            return None
        if self._take is None or not count:
            return [self._event(*fields) for fields in self._events[:count].tolist()]
        taken = self._take(self._address, count, event_of=self._method_and_metadata)
        return [self._left(position) for position in taken]

    def _method_and_metadata(self, position: int) -> tuple[int, Metadata]:
        event = self._left(position)
        return event.method, event.metadata

    def _left(self, position: int) -> Event:
        is_drawn = position < 0
        fields = self._events[-1 - position if is_drawn else position].item()
        return self._event(*fields)._replace(is_drawn=is_drawn)

    def _event(
        self,
        call: int,
        data: int,
        size: int,
        headers: int,
        header_size: int,
        left: float,
        kind: int,
        method: int,
        encoding: int,
        place: int,
    ) -> Event:
        metadata: Metadata = ()
        peer = ""
        if headers:
            metadata, peer = self._read_headers(ctypes.string_at(headers, header_size))
        return Event(
            _KINDS[kind],
            call,
            method,
            ctypes.string_at(data, size) if data else b"",
            _ENCODINGS[encoding],
            metadata,
            peer,
            None if left == math.inf else left,
            place,
        )


def _pairs(text: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(text):
        name_size, size = _LENGTHS.unpack_from(text, at)
        at += _LENGTHS.size
        # HTTP/2 allows any byte in a value.
        yield (
            text[at : at + name_size].decode("latin-1"),
            text[at + name_size : at + name_size + size],
        )
        at += name_size + size


def grpc_metadata(text: bytes) -> tuple[Metadata, str]:
    """A call's metadata and its client's address, as gRPC writes it."""
    found: list[tuple[str, str | bytes]] = []
    peer = ""
    for name, value in _pairs(text):
        if name == ":peer":
            peer = value.decode("latin-1")
        elif name.endswith("-bin"):
            # A client or proxy may have joined the values of one name.
            found += [(name, _base64(part.strip())) for part in value.split(b",")]
        else:
            found.append((name, value.decode("latin-1")))
    return tuple(found), peer


def http_headers(text: bytes) -> tuple[Metadata, str]:
    """Headers of a request of HTTP/1.1, `:method` and `:path` among them, and its client."""
    pairs = tuple((name, value.decode("latin-1")) for name, value in _pairs(text))
    # The transport adds the client as the last one.
    return pairs[:-1], pairs[-1][1]


def _base64(text: bytes) -> bytes:
    # Clients may omit the padding.
    try:
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        return b""


def metadata_pair(name: str, value: str | bytes) -> bytes:
    """One pair of metadata for the transport."""
    if isinstance(value, bytes):
        text = binascii.b2a_base64(value, newline=False).rstrip(b"=")
    else:
        text = value.encode("latin-1", "replace")
    return _LENGTHS.pack(len(name), len(text)) + name.encode() + text
