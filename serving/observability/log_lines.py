"""The log: for each event a line of text, or a line of JSON with the same fields.

Any logger's `extra={"model": …}` becomes fields. Clients' text is escaped in both formats. A line
is repeated at most once a second, and libraries that read clients' bytes are kept from writing
them: gRPC for Python logs headers that it cannot decode, tokens among them.
"""

import copy
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import TextIO

from sharded_infer.reports.html.text import visible

_REPEAT_SECONDS = 1.0
# Distinct lines in a second. Beyond, the oldest are forgotten, and may be repeated sooner.
_MOST_KNOWN = 4096
# Loggers of libraries that read clients' bytes.
_READERS = frozenset(("asyncio", "concurrent", "grpc"))
# Start of such a message, before it names anything.
_WORDS = re.compile(r"[A-Za-z ,.!-]{0,100}")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


_Key = tuple[str, int, str, str]


class LogFormat(StrEnum):
    """Formats of the log."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Lowest level of logged events."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogLines(logging.Formatter):
    """Formats events; `process_name` is such as "worker 0"."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._form = form
        self.process_name = "server"

    def format(self, record: logging.LogRecord) -> str:
        """One event's line; with an exception, in text, its traceback below."""
        if self._form is LogFormat.JSON:
            return json.dumps(self._fields(record), default=str)
        extra, message = _extra(record), record.getMessage()
        moment = _moment(record).replace(tzinfo=None).isoformat(" ", "milliseconds")
        line = f"{moment} {record.levelname} {message}"
        # Not repeated if the message has them.
        if f"{extra.get('model')} version {extra.get('version')}" in message:
            extra = {name: extra[name] for name in extra if name not in ("model", "version")}
        if pairs := [pair for name, value in extra.items() for pair in _pairs(name, value)]:
            line += f" ({' '.join(pairs)})"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        # Names from artifacts and callers, too.
        return visible(line)

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        moment = _moment(record).astimezone(UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": self.process_name,
            "pid": record.process,
        }
        for name, value in _extra(record).items():
            fields.setdefault(name, value)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["exception"] = {
                "type": type(error).__name__,
                "message": str(error),
                "traceback": self.formatException(record.exc_info).splitlines(),
            }
        return fields


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
        key = (record.name, record.levelno, record.getMessage(), repr(_extra(record)))
        now = self._now()
        self._report(now)
        if now - self._written.get(key, now - _REPEAT_SECONDS) < _REPEAT_SECONDS:
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
            if now - self._written.get(key, now - _REPEAT_SECONDS) < _REPEAT_SECONDS:
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
            if now - at < _REPEAT_SECONDS and len(self._written) <= _MOST_KNOWN:
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


def configure_logs(form: LogFormat, level: LogLevel) -> None:
    """Sends events to stderr, also in forked children: ours from `level`, others' from warnings."""
    handler = LimitedLog()
    handler.setFormatter(LogLines(form))
    root = logging.getLogger()
    # Libraries add plain handlers at import. Any other is the choice of the embedding program.
    if all(type(other) in {logging.StreamHandler, LimitedLog} for other in root.handlers):
        root.handlers[:] = [handler]
    logging.getLogger("sharded_infer").setLevel(level.value.upper())
    if form is LogFormat.JSON:
        logging.captureWarnings(True)


def name_process(name: str) -> None:
    """Sets the name of this process, such as "worker 0", in its log lines."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LogLines):
            handler.formatter.process_name = name


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created).astimezone()


def _pairs(name: str, value: object) -> Iterator[str]:
    """A field as `name=value`; nested values as a field each, a list as one text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _pairs(f"{name}.{key}", inner)
        return
    if isinstance(value, list | tuple | set | frozenset):
        value = ", ".join(map(str, value))
    yield f"{name}={json.dumps(value, default=str)}"


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
