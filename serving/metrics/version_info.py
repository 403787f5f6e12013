"""A version's facts for its metrics, in memory shared with the page's process."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from serving.metrics.cells import CELL_BYTES, MetricCells
from serving.metrics.families.model_families import NAMED_PLACES, OTHERS, OUTPUT_PLACES, RANK_PLACES
from serving.metrics.families.request_families import LATENCY_BOUNDARIES

# A longer output name is truncated, as labels are for people.
_NAME_CELLS = 8
# Concatenated names of features or tables: 127 of 31 letters.
_NAMES_CELLS = 512


class MappedTable(NamedTuple):
    """A table with an id map, the positions of its features, and if unknown ids leave bags."""

    name: str
    features: tuple[int, ...]
    leaves_out: bool


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """Facts of a loaded version.

    Attributes:
        rank_bytes: bytes of tables on each rank of its plan.
        outputs: in the spec's order.
        features: table by table in the spec's order, so that a feature of several tables repeats.
        mapped: tables with id maps, in the spec's order.
        tiered: tables with rows in tiers.
        products: precision of the tower, published and running, as a label value of `PRODUCTS`;
            empty: it is on devices.
    """

    objective_seconds: float
    rank_bytes: tuple[int, ...]
    outputs: tuple[str, ...]
    features: tuple[str, ...] = ()
    mapped: tuple[MappedTable, ...] = ()
    tiered: tuple[str, ...] = ()
    products: str = ""


class FactCells:
    """Cells of the facts that become label values: the number of ranks, and names."""

    def __init__(self, cells: MetricCells) -> None:
        self._cells = cells
        self._ranks = cells.allocate(1)
        self._names = cells.allocate(len(OUTPUT_PLACES) * _NAME_CELLS)
        self._features = cells.allocate(_NAMES_CELLS)
        self._mapped = cells.allocate(_NAMES_CELLS)
        self._tiered = cells.allocate(_NAMES_CELLS)

    def write(self, facts: VersionInfo) -> None:
        """Writes them in this process. The caller holds the lock."""
        self._cells.own[self._ranks] = len(facts.rank_bytes)
        names = [_cut(name) for name in facts.outputs[: len(OUTPUT_PLACES)]]
        self._cells.write_bytes(self._names, b"".join(names))
        self._write_names(self._features, facts.features)
        self._write_names(self._mapped, [table.name for table in facts.mapped])
        self._write_names(self._tiered, facts.tiered)

    def ranks(self) -> tuple[str, ...]:
        """Label values of the ranks; the last one may stand for several, as in `63+`."""
        count = int(self._cells.largest(self._ranks))
        if count <= len(RANK_PLACES):
            return RANK_PLACES[:count]
        return (*RANK_PLACES[:-1], f"{RANK_PLACES[-1]}+")

    def outputs(self) -> tuple[str, ...]:
        """Names of the first outputs; empty before a process has written them."""
        size = _NAME_CELLS * CELL_BYTES
        for content in self._cells.contents(self._names, len(OUTPUT_PLACES) * _NAME_CELLS):
            names = [
                content[first : first + size].rstrip(b"\0").decode(errors="ignore")
                for first in range(0, len(content), size)
            ]
            if names[0]:
                return tuple(name for name in names if name)
        return ()

    def features(self) -> tuple[str, ...]:
        """Label values of the features, by place; empty before a process has written them."""
        return self._names_at(self._features)

    def mapped_tables(self) -> tuple[str, ...]:
        """Label values of tables with id maps, by place; empty if there are none."""
        return self._names_at(self._mapped)

    def tiered_tables(self) -> tuple[str, ...]:
        """Label values of tables with rows in tiers, by place; empty if there are none."""
        return self._names_at(self._tiered)

    def _write_names(self, cell: int, names: Sequence[str]) -> None:
        text = "\n".join(_named(names)).encode()
        self._cells.write_bytes(cell, text.ljust(_NAMES_CELLS * CELL_BYTES, b"\0"))

    def _names_at(self, cell: int) -> tuple[str, ...]:
        for content in self._cells.contents(cell, _NAMES_CELLS):
            if names := content.rstrip(b"\0").decode():
                return (*names.split("\n"), OTHERS)
        return ()


def named_places(names: Sequence[str]) -> dict[str, int]:
    """Each name's place in `NAMED_PLACES`; names beyond the last share one."""
    named = _named(names)
    places = {name: place for place, name in enumerate(named)}
    return {name: places.get(name, len(named)) for name in names}


def _named(names: Sequence[str]) -> list[str]:
    named: list[str] = []
    room = _NAMES_CELLS * CELL_BYTES
    for name in dict.fromkeys(names):
        room -= len(name.encode()) + 1
        if room < 0 or len(named) == len(NAMED_PLACES) - 1:
            break
        named.append(name)
    return named


def latency_boundaries(objective_seconds: float) -> tuple[float, ...]:
    """Boundaries of a version's request_seconds: the common ones and its objective (0: unknown)."""
    boundaries = list(LATENCY_BOUNDARIES)
    if objective_seconds > 0.0 and objective_seconds not in boundaries:
        insort(boundaries, objective_seconds)
    return tuple(boundaries)


def _cut(name: str) -> bytes:
    size = _NAME_CELLS * CELL_BYTES
    return name.encode()[:size].ljust(size, b"\0")
