"""A log that repeats a line at most once a second, and hides clients' text from libraries.

Clients could otherwise make a library repeat itself, and write their text. gRPC for Python logs
headers that it cannot decode, tokens among them.
"""

import copy
import logging
import re
from collections.abc import Callable
from time import monotonic
from typing import TextIO

_SECONDS = 1.0
# Distinct lines in a second. Beyond, the oldest are forgotten, and may be repeated sooner.
_MOST_KNOWN = 4096
# Loggers of libraries that read clients' bytes.
_READERS = frozenset(("asyncio", "concurrent", "grpc"))
# Start of such a message, before it names anything.
_WORDS = re.compile(r"[A-Za-z ,.!-]{0,100}")
_STANDARD = frozenset(vars(logging.makeLogRecord({})))

_Key = tuple[str, int, str, str]


class WithheldError(Exception):
    """Replaces an exception whose text may come from a client; keeps its type."""


class LimitedLog(logging.StreamHandler[TextIO]):
    """Writes records to stderr; equal records once a second.

    The field `left_out` of a record is the number of equal ones omitted before it. The last of
    them are reported with the next record of any kind, or at the end.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._now = now
        # When each was last written; the latest come last.
        self._written: dict[_Key, float] = {}
        # The last omitted record of each kind, and the number of omitted ones.
        self._held: dict[_Key, tuple[logging.LogRecord, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, or counts it. `logging` holds the handler's lock."""
        record = _without_clients_words(record)
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        key = (record.name, record.levelno, record.getMessage(), repr(extra))
        now = self._now()
        self._report(now)
        if now - self._written.get(key, now - _SECONDS) < _SECONDS:
            self._held[key] = (record, self._held.get(key, (record, 0))[1] + 1)
        else:
            self._write(key, record, now)

    def close(self) -> None:
        """Reports the last omitted records."""
        self.acquire()
        try:
            self._report(float("inf"))
        finally:
            self.release()
        super().close()

    def _report(self, now: float) -> None:
        while self._held:
            key = next(iter(self._held))
            if now - self._written.get(key, now - _SECONDS) < _SECONDS:
                return
            record, count = self._held.pop(key)
            if count > 1:
                record.left_out = count - 1
            self._write(key, record, now)

    def _write(self, key: _Key, record: logging.LogRecord, now: float) -> None:
        self._written.pop(key, None)
        self._written[key] = now
        self._forget(now)
        super().emit(record)

    def _forget(self, now: float) -> None:
        """Forgets lines that may be repeated by now, to bound memory."""
        while self._written:
            oldest, at = next(iter(self._written.items()))
            if now - at < _SECONDS and len(self._written) <= _MOST_KNOWN:
                return
            del self._written[oldest]


def _without_clients_words(record: logging.LogRecord) -> logging.LogRecord:
    """The record without clients' text, if its library reads such text."""
    if record.name.partition(".")[0] not in _READERS:
        return record
    plain = copy.copy(record)
    words = _WORDS.match(str(record.msg))
    plain.msg, plain.args = f"{record.name}: {words[0].strip() if words else ''}", None
    if record.exc_info and record.exc_info[1] is not None:
        error, trace = record.exc_info[1:]
        plain.exc_info = (WithheldError, WithheldError(type(error).__name__), trace)
    plain.exc_text = plain.stack_info = None
    return plain
