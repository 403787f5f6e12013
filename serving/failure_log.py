"""Tells the log of versions that cannot be served, but not of what is raised in the end."""

import logging
from dataclasses import dataclass

_log = logging.getLogger("sharded_infer")


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A version that is not served.

    Attributes:
        model: the model.
        version: its number.
        phase: in which step of its load it failed; None: it could not be fetched, and will be
            tried again.
        reason: in words.
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


class FailureLog:
    """What one follower tells of versions that failed."""

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
        """Tells what was held back, and each failure at once from now on.

        Args:
            but: what is raised, and said by whoever catches it.
        """
        for failed in self._held.values():
            if but is None or failed.reason != str(but):
                failed.tell()
        self._held.clear()
        self._holds_back = False
