"""What became of versions lately: loads, failures, and names that moved.

Seen as the difference between what the board said before and says now, so it needs no messages.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from serving.releases import ModelReleases, Releases

_KEPT = 100
DEFAULT = "default"

Event = Literal["loaded", "failed", "named", "unloaded"]
PhasesOf = Callable[[str], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Swap:
    """Something that happened to a version.

    Attributes:
        at: when it was seen, seconds since 1970.
        model: its model.
        version: its number.
        event: it was loaded by every worker, could not be loaded, got a name, or was let go.
        name: the one it got; the default's is `default`.
        previous: the version that had the name before; 0: none.
        phase: of the load, in which it failed.
        reason: why it failed, for people.
        phases: seconds that the load took, by phase.
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
    """The last of them, in the order of time."""

    def __init__(self) -> None:
        """Begins with none, and nothing held."""
        self._before = Releases()
        self._recent: deque[Swap] = deque(maxlen=_KEPT)

    def recent(self) -> list[Swap]:
        """The last ones, the newest last."""
        return list(self._recent)

    def see(self, releases: Releases, at: float, phases_of: PhasesOf) -> None:
        """Notes what differs from what was seen before. One thread calls.

        Args:
            releases: what the board says now.
            at: seconds since 1970.
            phases_of: seconds by phase of a model's last load.
        """
        for name, now in releases.models.items():
            before = self._before.models.get(name, ModelReleases(name))
            self._recent.extend(_differences(before, now, at, phases_of))
        self._before = releases


def _differences(
    before: ModelReleases, now: ModelReleases, at: float, phases_of: PhasesOf
) -> Iterator[Swap]:
    known = {(holding.key, holding.ready) for holding in before.held}
    for holding in now.held:
        if holding.ready and (holding.key, True) not in known:
            phases = {phase: s for phase, s in phases_of(now.model).items() if s}
            yield Swap(at, now.model, holding.version, "loaded", phases=phases)
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
    held = {holding.version for holding in now.held}
    failed = {failure.version for failure in now.failures}
    for holding in before.held:
        if holding.version not in held | failed:
            yield Swap(at, now.model, holding.version, "unloaded")
