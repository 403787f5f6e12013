"""Parser of a connection's successive requests, by llhttp."""

import httptools

from kernels.wording import counted
from serving.http_api.connections.request_head import RequestHead, read_head
from serving.http_api.exchange import HttpError

_SLICE_BYTES = 16 * 1024
_END = b"\r\n\r\n"
_TAIL_BYTES = len(_END) - 1
# Each piece of a body costs a call, however small: beyond these, pieces have a least mean size.
_FREE_PIECES = 4096
_LEAST_PIECE_BYTES = 64
# Bytes that chunk sizes, line breaks and trailers may add to a chunked body.
_FRAMING_BYTES = 64 * 1024
# Between the method, the target and the version.
_LINE_SPACES = 2


class RequestReader:
    """Parses the requests of one connection; `next` starts another one.

    The body's reader removes `pieces`; `body_size` counts all bytes so far.
    """

    head: RequestHead | None = None
    is_complete = False
    body_size = 0
    # The last bytes, if they may begin two line breaks.
    _tail = b""
    _keep_alive = False
    _target = b""
    _left = 0
    _received = 0
    _piece_count = 0
    # In the request's line so far.
    _spaces = 0
    _has_line = False

    def __init__(self, header_bytes: int) -> None:
        self._most_header_bytes = header_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._pairs: list[tuple[bytes, bytes]] = []
        self._has_head = False
        self.pieces: list[bytes] = []

    def read(self, data: bytes | bytearray, begin: int, end: int) -> int:
        """Reads `data[begin:end]`, at most to the end of the request, and returns where it stopped.

        Raises HttpError if the bytes are not HTTP, or are too many.
        """
        stop = self._slice_end(data, begin, end)
        self._received += stop - begin
        if not self._has_line:
            self._count_spaces(data, begin, stop)
        try:
            self._parser.feed_data(memoryview(data)[begin:stop])
        except httptools.HttpParserUpgrade:
            self._stay()
        except httptools.HttpParserError as error:
            # The parser's message has nothing of the client's.
            raise HttpError(400, f"this is no HTTP: {error}") from error
        if self.head is None:
            if self._has_head:
                self.head = self._checked_head()
            elif self._received > self._most_header_bytes:
                raise HttpError(400, f"expected at most {self._most_header_bytes} bytes of headers")
        elif self.head.body_bytes is None:
            self._check_pieces()
        return stop

    def next(self) -> None:
        """Starts another request."""
        self.head, self.is_complete, self._has_head = None, False, False
        self._target, self._tail, self._pairs, self.pieces = b"", b"", [], []
        self._left = self._received = self.body_size = self._piece_count = self._spaces = 0
        self._has_line = False

    def close(self) -> None:
        """Drops the parser, whose callbacks keep this object alive."""
        del self._parser

    def on_url(self, url: bytes) -> None:
        """Parser callback: part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser callback: header or trailer."""
        # Trailers are not used.
        if not self._has_head:
            self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        """Parser callback: end of the headers."""
        self._has_head = True
        # Available only until the end of the request.
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        """Parser callback: piece of the body."""
        self.pieces.append(piece)
        self.body_size += len(piece)
        self._piece_count += 1

    def on_message_complete(self) -> None:
        """Parser callback: end of the request."""
        self.is_complete = True

    def _slice_end(self, data: bytes | bytearray, begin: int, end: int) -> int:
        """End of a slice that contains the end of at most one request."""
        if self._left:
            stop = min(end, begin + self._left)
            self._left -= stop - begin
            return stop
        end = min(end, begin + _SLICE_BYTES)
        # A request without a length ends with two line breaks, which slices may cut.
        across = -1
        if self._tail:
            across = (self._tail + data[begin : min(end, begin + _TAIL_BYTES)]).find(_END)
        if across >= 0:
            stop = begin + across + len(_END) - len(self._tail)
        else:
            found = data.find(_END, begin, end)
            stop = end if found < 0 else found + len(_END)
        is_end = data.endswith(_END, begin, stop) or across >= 0
        self._tail = (
            b""
            if is_end
            else (self._tail + data[max(begin, stop - _TAIL_BYTES) : stop])[-_TAIL_BYTES:]
        )
        return stop

    def _count_spaces(self, data: bytes | bytearray, begin: int, stop: int) -> None:
        """Counts the spaces of the request's line: the parser takes several for one."""
        # Empty lines may come before the line, and none before its first space.
        first = begin if self._spaces else data.find(b" ", begin, stop)
        if first < 0:
            return
        end = data.find(b"\n", first, stop)
        self._has_line = end >= 0
        self._spaces += data.count(b" ", first, end if self._has_line else stop)

    def _checked_head(self) -> RequestHead:
        parser = self._parser
        if self._spaces != _LINE_SPACES:
            raise HttpError(400, "the request's line: expected one space between its parts")
        head = read_head(
            parser.get_method().decode("ascii"),
            self._target,
            parser.get_http_version(),
            self._pairs,
            keep_alive=self._keep_alive,
            most_bytes=self._most_header_bytes,
        )
        self._left = head.body_bytes or 0
        self._received = 1
        return head

    def _stay(self) -> None:
        """Continues in HTTP/1.1 when a client asks to upgrade, as RFC 9110 7.8 allows."""
        head = self._checked_head()
        if head.request.method == "CONNECT":
            raise HttpError(400, "CONNECT: this server is no proxy")
        # The parser takes the body for the other protocol, so a new parser reads it.
        self._parser = httptools.HttpRequestParser(self)
        self.is_complete = False
        length = b"transfer-encoding: chunked"
        if head.body_bytes is not None:
            length = b"content-length: %d" % head.body_bytes
        self._parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n" + length + _END)
        self.head = head

    def _check_pieces(self) -> None:
        least = (self._piece_count - _FREE_PIECES) * _LEAST_PIECE_BYTES
        if self.body_size < least:
            raise HttpError(
                400,
                f"the body has {counted(self._piece_count, 'chunk')} of less than "
                f"{_LEAST_PIECE_BYTES} bytes on average",
            )
        if self._received > 2 * self.body_size + _FRAMING_BYTES + 64 * self._piece_count:
            raise HttpError(400, "the body's chunks have too long extensions, or trailers")
