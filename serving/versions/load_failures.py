"""Log lines of versions that cannot be served, except for an error that is raised in the end."""

import logging
from dataclasses import dataclass

_log = logging.getLogger("sharded_infer")


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A version that is not served; no `phase`: it could not be fetched, and is tried again."""

    model: str
    version: int
    phase: str | None
    reason: str

    def tell(self) -> None:
        """Logs it."""
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


def without_frames(error: Exception) -> Exception:
    """An error to keep: its frames would hold the files of what failed to load."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


class LoadFailureLog:
    """Failed versions of one repository watcher."""

    def __init__(self) -> None:
        self._holds_back = False
        self._held: dict[str, FailedLoad] = {}

    def hold_back(self) -> None:
        """Withholds the first failure of each model from now on: the start may raise it."""
        self._holds_back = True

    def add(self, failed: FailedLoad) -> None:
        """Logs a failure, or withholds it."""
        if self._holds_back and failed.model not in self._held:
            self._held[failed.model] = failed
        else:
            failed.tell()

    def first(self, model: str) -> FailedLoad | None:
        """The withheld failure of a model."""
        return self._held.get(model)

    def release(self, but: Exception | None = None) -> None:
        """Logs withheld failures, except for one whose handler logs it, and later ones at once."""
        for failed in self._held.values():
            if but is None or failed.reason != str(but):
                failed.tell()
        self._held.clear()
        self._holds_back = False
