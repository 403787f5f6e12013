"""A log in which no line comes more than once a second, and no library writes what clients sent.

A client chooses how often a library says the same of its requests, and what: gRPC for Python writes
headers that it cannot decode as they came, tokens among them.
"""

import copy
import logging
import re
from collections.abc import Callable
from time import monotonic
from typing import TextIO

_SECONDS = 1.0
# Of different lines. Beyond, the oldest are forgotten, and may come again sooner.
_MOST_KNOWN = 4096
# Loggers of what reads clients' bytes.
_READERS = frozenset(("asyncio", "concurrent", "grpc", "h11", "uvicorn"))
# What such a message says before it names anything.
_WORDS = re.compile(r"[A-Za-z ,.!-]{0,100}")
_STANDARD = frozenset(vars(logging.makeLogRecord({})))

_Key = tuple[str, int, str, str]


class WithheldError(Exception):
    """Stands for an exception whose words may be a client's; says its type."""


class LimitedLog(logging.StreamHandler[TextIO]):
    """Writes records to the error stream; of those that say the same, one a second.

    Where some were left out before one, its field `left_out` says how many. The last of them are
    told with the first record of any kind that comes later, or at the end.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        """Begins with nothing written.

        Args:
            now: seconds on a clock that is never set back.
        """
        super().__init__()
        self._now = now
        # When each was written last; the latest come last.
        self._written: dict[_Key, float] = {}
        # The last of each that was not written since, and how many were not.
        self._held: dict[_Key, tuple[logging.LogRecord, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, or counts it. `logging` holds the handler's lock."""
        record = _without_clients_words(record)
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        key = (record.name, record.levelno, record.getMessage(), repr(extra))
        now = self._now()
        self._tell(now)
        if now - self._written.get(key, now - _SECONDS) < _SECONDS:
            self._held[key] = (record, self._held.get(key, (record, 0))[1] + 1)
        else:
            self._write(key, record, now)

    def close(self) -> None:
        """Tells what was left out last."""
        self.acquire()
        try:
            self._tell(float("inf"))
        finally:
            self.release()
        super().close()

    def _tell(self, now: float) -> None:
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
        if len(self._written) > _MOST_KNOWN:
            del self._written[next(iter(self._written))]
        super().emit(record)


def _without_clients_words(record: logging.LogRecord) -> logging.LogRecord:
    """The record; of a library that reads what clients send, one that holds none of it."""
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
