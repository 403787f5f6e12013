"""What a version is, as far as its metrics say it; in shared memory, for the page's process."""

from bisect import insort
from dataclasses import dataclass

from serving.metric_cells import CELL_BYTES, MetricCells
from serving.model_families import OUTPUT_PLACES, RANK_PLACES
from serving.request_families import LATENCY_BOUNDARIES

# A longer name of an output is cut: labels are for people.
_NAME_CELLS = 8


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What is known of a version once it is loaded.

    Attributes:
        objective_seconds: its latency objective.
        rank_bytes: of tables on each rank of its plan.
        outputs: their names, in the spec's order.
    """

    objective_seconds: float
    rank_bytes: tuple[int, ...]
    outputs: tuple[str, ...]


class FactCells:
    """Where the facts lie that are label values: how many ranks there are, and outputs' names."""

    def __init__(self, cells: MetricCells) -> None:
        """Allocates them.

        Args:
            cells: the server's.
        """
        self._cells = cells
        self._ranks = cells.allocate(1)
        self._names = cells.allocate(len(OUTPUT_PLACES) * _NAME_CELLS)

    def write(self, facts: VersionFacts) -> None:
        """Says them in this process; the lock is held."""
        self._cells.own[self._ranks] = len(facts.rank_bytes)
        names = [_cut(name) for name in facts.outputs[: len(OUTPUT_PLACES)]]
        self._cells.write_bytes(self._names, b"".join(names))

    def ranks(self) -> tuple[str, ...]:
        """The ranks' label values; the last one may stand for several, as in `63+`."""
        count = int(self._cells.largest(self._ranks))
        if count <= len(RANK_PLACES):
            return RANK_PLACES[:count]
        return (*RANK_PLACES[:-1], f"{RANK_PLACES[-1]}+")

    def outputs(self) -> tuple[str, ...]:
        """The outputs' names, of the first ones; empty before a process has said them."""
        size = _NAME_CELLS * CELL_BYTES
        for content in self._cells.contents(self._names, len(OUTPUT_PLACES) * _NAME_CELLS):
            names = [
                content[first : first + size].rstrip(b"\0").decode(errors="ignore")
                for first in range(0, len(content), size)
            ]
            if names[0]:
                return tuple(name for name in names if name)
        return ()


def latency_boundaries(objective_seconds: float) -> tuple[float, ...]:
    """The boundaries of a version's request_seconds: everybody's, and its objective.

    Args:
        objective_seconds: the latency objective; 0: not known.
    """
    boundaries = list(LATENCY_BOUNDARIES)
    if objective_seconds > 0.0 and objective_seconds not in boundaries:
        insort(boundaries, objective_seconds)
    return tuple(boundaries)


def _cut(name: str) -> bytes:
    size = _NAME_CELLS * CELL_BYTES
    return name.encode()[:size].ljust(size, b"\0")
