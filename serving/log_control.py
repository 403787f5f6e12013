"""Which records a server's processes log: clients may say, and all processes heed it at once."""

import logging
from collections.abc import Callable

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from serving.locked_document import LockedDocument

_DOCUMENT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LogLevels:
    """What is logged.

    Attributes:
        info: records of information.
        warnings: warnings.
        errors: errors.
        verbose_level: from 1, records for debugging.
    """

    info: bool = True
    warnings: bool = True
    errors: bool = True
    verbose_level: int = 0

    def allow(self, level: int) -> bool:
        """Whether a record of a level of `logging` is logged."""
        if level >= logging.ERROR:
            return self.errors
        if level >= logging.WARNING:
            return self.warnings
        if level >= logging.INFO:
            return self.info
        return self.verbose_level > 0


_LEVELS: TypeAdapter[LogLevels] = TypeAdapter(LogLevels)


class LogControl(logging.Filter):
    """Lets a logger's records pass by levels in shared memory. Made before any fork."""

    def __init__(self) -> None:
        """Begins with all but records for debugging, until it is attached."""
        super().__init__()
        self._document = LockedDocument(_DOCUMENT_BYTES, _LEVELS, LogLevels())
        self._known = (-1, LogLevels())

    @property
    def levels(self) -> LogLevels:
        """What is logged now."""
        known = self._known
        if known[0] != self._document.sequence:
            self._known = known = self._document.read()
        return known[1]

    def change(self, edit: Callable[[LogLevels], LogLevels]) -> None:
        """Says what is logged from now on, in all processes.

        Args:
            edit: given what is logged now; what it raises leaves that as it is.
        """
        self._document.change(edit)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        return self.levels.allow(record.levelno)

    def attach(self, logger: logging.Logger) -> None:
        """Decides for a logger from now on, in place of its level, with which it begins."""
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
