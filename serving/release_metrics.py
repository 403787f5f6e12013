"""What a server counts of one model's versions as they come and go."""

from collections.abc import Mapping, Set
from dataclasses import replace

from serving.metric_cells import MetricCells
from serving.metric_family import Family, FamilyBlock
from serving.model_families import (
    LABEL_VERSION,
    LOAD_FAILURES,
    LOAD_SECONDS,
    LOADS,
    LOOKED,
    MISSING,
    MODEL_FAMILIES,
    SERVED_VERSION,
)
from serving.version_metrics import VersionMetrics
from sharded_infer.errors import InternalError

_DEFAULT = "default"


class ReleaseMetrics:
    """A model's loads, the meaning of its names, and the places where its versions are counted.

    Every process writes its own row; which version has a place is one process's to say.

    Attributes:
        block: where the model's families lie in the cells.
    """

    def __init__(
        self,
        cells: MetricCells,
        block: FamilyBlock,
        places: tuple[tuple[int, VersionMetrics], ...],
    ) -> None:
        """Finds the cells.

        Args:
            cells: the server's.
            block: where the model's families lie in them.
            places: for each place its version's cell, and what is counted there.
        """
        self._cells = cells
        self.block = block
        self._places = places
        self._labels = block.families[-1]

    @property
    def versions(self) -> list[VersionMetrics]:
        """What is counted at all places."""
        return [counters for _, counters in self._places]

    def version(self, version: int) -> VersionMetrics:
        """Where a version is counted.

        Raises:
            InternalError: it has no place.
        """
        for cell, counters in self._places:
            if int(self._cells.largest(cell)) == version:
                return counters
        raise InternalError(f"metrics: version {version} has no place")

    def assign(self, version: int, held: Set[int]) -> None:
        """Gives a version a place: its own from before, a free one, or one of the oldest version.

        Args:
            version: the version's number.
            held: versions that keep their places.

        Raises:
            InternalError: there is none.
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
        self._write(cell, version)

    def loaded(self) -> None:
        """Counts a version that every worker has loaded."""
        self._add(self.block.cell(LOADS))

    def failed(self, phase: str) -> None:
        """Counts a version that is not served.

        Args:
            phase: what was being done.
        """
        self._add(self.block.cell(LOAD_FAILURES, phase))

    def looked(self, now: float) -> None:
        """Says that the repository has been read.

        Args:
            now: seconds since 1970.
        """
        self._write(self.block.cell(LOOKED), now)

    def took(self, phases: Mapping[str, float]) -> None:
        """Says how long the phases of the last load took in this process.

        Args:
            phases: seconds by phase.
        """
        for phase, seconds in phases.items():
            self._write(self.block.cell(LOAD_SECONDS, phase), seconds)

    def serves(self, names: Mapping[str, int], *, missing: bool = False) -> None:
        """Says what each name means in this process.

        Args:
            names: versions by name; the empty one is the default.
            missing: the model is to be served, and is not.
        """
        self._write(self.block.cell(MISSING), missing)
        self._write(self.block.cell(SERVED_VERSION), names.get("", 0))
        for label in self._labels.label_values:
            version = names.get("" if label == _DEFAULT else label, 0)
            self._write(self.block.cell(self._labels, label), version)

    def _add(self, cell: int) -> None:
        with self._cells.lock:
            self._cells.own[cell] += 1.0

    def _write(self, cell: int, value: float) -> None:
        with self._cells.lock:
            self._cells.own[cell] = float(value)


def model_families(labels: tuple[str, ...]) -> tuple[Family, ...]:
    """The families of a model, with the labels that its server follows.

    Args:
        labels: their names.
    """
    shown = replace(LABEL_VERSION, label_values=tuple(dict.fromkeys((_DEFAULT, *labels))))
    return (*MODEL_FAMILIES[:-1], shown)
