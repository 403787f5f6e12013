"""Log formats: for each event a line of text, or a line of JSON with the same fields.

Any logger's `extra={"model": …}` becomes fields. Clients' text is escaped in both formats.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from serving.observability.limited_log import LimitedLog
from sharded_infer.reports.html.text import visible

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


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


def configure_logs(form: LogFormat, level: LogLevel) -> None:
    """Sends all loggers' events to stderr, also in forked children.

    `level` applies to our own events; libraries' events are logged from warnings on.
    """
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
