"""Recent events of versions: loads, failures, and moved names.

Computed from differences of the shared state, so no messages are needed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from serving.versions.state import DesiredState, ModelState

_KEPT = 100
DEFAULT = "default"

Event = Literal["loaded", "failed", "named", "unloaded"]
PhasesOf = Callable[[str], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Swap:
    """An event of a version, observed at seconds since 1970.

    A loaded version has the seconds of its load by phase, a failed one the phase that failed.
    `previous` had the name before; 0: none.
    """

    at: float
    model: str
    version: int
    event: Event
    name: str = ""
    previous: int = 0
    phase: str = ""
    reason: str = ""
    phases: dict[str, float] = field(default_factory=dict)


class Swaps:
    """The last events, in chronological order."""

    def __init__(self) -> None:
        self._before = DesiredState()
        self._recent: deque[Swap] = deque(maxlen=_KEPT)

    def recent(self) -> list[Swap]:
        """The last events, the newest last."""
        return list(self._recent)

    def see(self, releases: DesiredState, at: float, phases_of: PhasesOf) -> None:
        """Records changes since the last call. One thread calls, at times since 1970.

        `phases_of` returns the seconds by phase of a model's last load.
        """
        for name, now in releases.models.items():
            before = self._before.models.get(name, ModelState(name))
            self._recent.extend(_differences(before, now, at, phases_of))
        self._before = releases


def _differences(
    before: ModelState, now: ModelState, at: float, phases_of: PhasesOf
) -> Iterator[Swap]:
    known = {(assigned_version.key, assigned_version.ready) for assigned_version in before.assigned}
    for assigned_version in now.assigned:
        if assigned_version.ready and (assigned_version.key, True) not in known:
            phases = {phase: s for phase, s in phases_of(now.model).items() if s}
            yield Swap(at, now.model, assigned_version.version, "loaded", phases=phases)
    for failure in now.failures:
        if failure not in before.failures:
            yield Swap(
                at, now.model, failure.version, "failed",
                phase=failure.phase, reason=failure.reason,
            )  # fmt: skip
    for name, version in now.names.items():
        if before.names.get(name) != version:
            previous = before.names.get(name, 0)
            yield Swap(
                at, now.model, version, "named", name=name or DEFAULT, previous=previous
            )  # fmt: skip
    assigned = {assigned_version.version for assigned_version in now.assigned}
    failed = {failure.version for failure in now.failures}
    for assigned_version in before.assigned:
        if assigned_version.version not in assigned | failed:
            yield Swap(at, now.model, assigned_version.version, "unloaded")
