"""Tells the log of versions that cannot be served, but not of what is raised in the end."""

import logging
from dataclasses import dataclass

_log = logging.getLogger("sharded_infer")


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A version that is not served.

    Attributes:
        phase: of its load; None: it could not be fetched, and will be tried again.
    """

    model: str
    version: int
    phase: str | None
    reason: str

    def tell(self) -> None:
        """Writes it to the log."""
        about: dict[str, object] = {"model": self.model, "version": self.version}
        if self.phase is None:
            _log.warning(
                "%s version %d: cannot be fetched now: %s", self.model, self.version, self.reason,
                extra=about,
            )  # fmt: skip
            return
        _log.error(
            "%s version %d is not served, it failed at %r: %s",
            self.model, self.version, self.phase, self.reason,
            extra={**about, "phase": self.phase},
        )  # fmt: skip


class LoadFailureLog:
    """What one repository watcher tells of versions that failed."""

    def __init__(self) -> None:
        """Begins by telling each at once."""
        self._holds_back = False
        self._held: dict[str, FailedLoad] = {}

    def hold_back(self) -> None:
        """Keeps the first failure of each model from now on: it may be what the start ends with."""
        self._holds_back = True

    def add(self, failed: FailedLoad) -> None:
        """Tells of a failure, or holds it back."""
        if self._holds_back and failed.model not in self._held:
            self._held[failed.model] = failed
        else:
            failed.tell()

    def first(self, model: str) -> FailedLoad | None:
        """The failure of a model that is held back."""
        return self._held.get(model)

    def release(self, but: Exception | None = None) -> None:
        """Logs failures held back so far, and later ones at once.

        Args:
            but: a failure that is raised, and logged by its handler.
        """
        for failed in self._held.values():
            if but is None or failed.reason != str(but):
                failed.tell()
        self._held.clear()
        self._holds_back = False
