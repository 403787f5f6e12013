"""Loads and unloads of a model's versions."""

from collections.abc import Mapping, Set
from dataclasses import replace

from serving.metrics.cells import MetricCells
from serving.metrics.families.family import Family, FamilyBlock
from serving.metrics.families.model_families import (
    LABEL_VERSION,
    LOAD_FAILURES,
    LOAD_SECONDS,
    LOADS,
    LOOKED,
    MISSING,
    MODEL_FAMILIES,
    SERVED_VERSION,
)
from serving.metrics.version_metrics import VersionMetrics
from sharded_infer.errors import InternalError

_DEFAULT = "default"


class ReleaseMetrics:
    """A model's loads, the versions of its names, and the places that count its versions.

    Every process writes its own row; one process assigns versions to places.
    """

    def __init__(
        self, cells: MetricCells, block: FamilyBlock, places: tuple[tuple[int, VersionMetrics], ...]
    ) -> None:
        self._cells = cells
        self.block = block
        self._places = places
        self._labels = block.families[-1]

    @property
    def versions(self) -> list[VersionMetrics]:
        """Counters of all places."""
        return [counters for _, counters in self._places]

    def version(self, version: int) -> VersionMetrics:
        """Counters of a version. Raises InternalError if it has no place."""
        for cell, counters in self._places:
            if int(self._cells.largest(cell)) == version:
                return counters
        raise InternalError(f"metrics: version {version} has no place")

    def assign(self, version: int, held: Set[int]) -> None:
        """Assigns a place to a version: its former one, a free one, or that of the oldest version.

        Versions in `held` keep their places. Raises InternalError if no place is available.
        """
        taken = [int(self._cells.largest(cell)) for cell, _ in self._places]
        if version in taken:
            return
        free = [at for at, other in enumerate(taken) if other not in held]
        if not free:
            raise InternalError(f"metrics: no place for version {version} beside {sorted(held)}")
        cell, counters = self._places[min(free, key=lambda at: taken[at])]
        self._cells.clear(cell, 1)
        counters.clear()
        self._cells.set(cell, version)

    def loaded(self) -> None:
        """Counts a version that every worker has loaded."""
        self._cells.add(self.block.cell(LOADS))

    def failed(self, phase: str) -> None:
        """Counts a version that failed to load, in a phase."""
        self._cells.add(self.block.cell(LOAD_FAILURES, phase))

    def looked(self, now: float) -> None:
        """Sets when the repository was read, in seconds since 1970."""
        self._cells.set(self.block.cell(LOOKED), now)

    def took(self, phases: Mapping[str, float]) -> None:
        """Sets the seconds of each phase of the last load in this process."""
        for phase, seconds in phases.items():
            self._cells.set(self.block.cell(LOAD_SECONDS, phase), seconds)

    def serves(self, names: Mapping[str, int], *, missing: bool = False) -> None:
        """Sets the version of each name, empty for the default; `missing`: it should have one."""
        self._cells.set(self.block.cell(MISSING), missing)
        self._cells.set(self.block.cell(SERVED_VERSION), names.get("", 0))
        for label in self._labels.label_values:
            version = names.get("" if label == _DEFAULT else label, 0)
            self._cells.set(self.block.cell(self._labels, label), version)


def model_families(labels: tuple[str, ...]) -> tuple[Family, ...]:
    """Families of a model, with the labels that its server follows."""
    shown = replace(LABEL_VERSION, label_values=tuple(dict.fromkeys((_DEFAULT, *labels))))
    return (*MODEL_FAMILIES[:-1], shown)
