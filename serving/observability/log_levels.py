"""Log levels of a server's processes, which clients may change for all processes at once."""

import logging
from collections.abc import Callable

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from serving.host.shared_document import LockedDocument

_DOCUMENT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LogLevels:
    """Enabled levels; `verbose_level` from 1 on enables debug records."""

    info: bool = True
    warnings: bool = True
    errors: bool = True
    verbose_level: int = 0

    def allow(self, level: int) -> bool:
        """True if a record of a level of `logging` is logged."""
        if level >= logging.ERROR:
            return self.errors
        if level >= logging.WARNING:
            return self.warnings
        if level >= logging.INFO:
            return self.info
        return self.verbose_level > 0


_LEVELS: TypeAdapter[LogLevels] = TypeAdapter(LogLevels)


class LogControl(logging.Filter):
    """Filters a logger's records by levels in shared memory. Create it before any fork."""

    def __init__(self) -> None:
        super().__init__()
        self._document = LockedDocument(_DOCUMENT_BYTES, _LEVELS, LogLevels())
        self._known = (-1, LogLevels())

    @property
    def levels(self) -> LogLevels:
        """The enabled levels."""
        known = self._known
        if known[0] != self._document.sequence:
            self._known = known = self._document.read()
        return known[1]

    def change(self, edit: Callable[[LogLevels], LogLevels]) -> None:
        """Maps the levels to new ones, in all processes; an exception leaves them unchanged."""
        self._document.change(edit)

    def filter(self, record: logging.LogRecord) -> bool:
        """True if a record is logged."""
        return self.levels.allow(record.levelno)

    def attach(self, logger: logging.Logger) -> None:
        """Replaces a logger's level, starting from it."""
        level = logger.getEffectiveLevel()
        self.change(
            lambda _: LogLevels(
                info=level <= logging.INFO,
                warnings=level <= logging.WARNING,
                verbose_level=int(level <= logging.DEBUG),
            )
        )
        logger.setLevel(logging.DEBUG)
        logger.addFilter(self)
