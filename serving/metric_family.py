"""What a metric family is, and where the cells of several lie."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Kind(StrEnum):
    """How a family's cells make up its samples on the page."""

    COUNTER = "counter"
    GAUGE = "gauge"
    # A gauge that is the largest of the processes' values instead of their sum.
    LARGEST = "largest"
    HISTOGRAM = "histogram"


class Detail(IntEnum):
    """How much a server counts (`serve --metrics`), or from which on a family is counted."""

    OFF = 0
    BASIC = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family.

    Attributes:
        name: as on the page, without `_total`.
        help: one sentence.
        kind: how its samples are made.
        readers: who looks at it, and why.
        label: the label beside those of its block.
        label_values: one series each. Of `rank`, `output` and `feature` these are places, whose
            names each version has of its own.
        hidden_zeros: of those, the ones that are shown only once they are counted.
        boundaries: a histogram's, each included in its bucket.
        detail: from which on it is counted.
        spare_buckets: of a histogram, buckets for boundaries that each version has of its own.
        is_fact: says what a version is; it holds when the process that said so has gone.
    """

    name: str
    help: str
    kind: Kind
    readers: str
    label: str = ""
    label_values: tuple[str, ...] = ("",)
    hidden_zeros: frozenset[str] = frozenset()
    boundaries: tuple[float, ...] = ()
    detail: Detail = Detail.BASIC
    spare_buckets: int = 0
    is_fact: bool = False

    @property
    def buckets(self) -> int:
        """Of a histogram: with the one above all boundaries, and those that a version may need."""
        return len(self.boundaries) + self.spare_buckets + 1

    @property
    def cells_per_series(self) -> int:
        """A histogram's buckets and its sum; or one."""
        return self.buckets + 1 if self.kind is Kind.HISTOGRAM else 1

    @property
    def cells(self) -> int:
        """The cells of all series."""
        return len(self.label_values) * self.cells_per_series

    @property
    def full_name(self) -> str:
        """As queries name it; a histogram's has `_bucket`, `_sum` or `_count` behind it."""
        return self.name + ("_total" if self.kind is Kind.COUNTER else "")


@dataclass(frozen=True, slots=True)
class FamilyBlock:
    """Families whose cells lie side by side, under common values of the block's labels.

    Attributes:
        families: in the cells' order.
        label_values: of the labels that all series of the block have.
        first: the first cell.
    """

    families: tuple[Family, ...]
    label_values: tuple[str, ...]
    first: int

    @property
    def cells(self) -> int:
        """How many there are."""
        return sum(family.cells for family in self.families)

    def series(self) -> Iterator[tuple[Family, str, int]]:
        """Each series: its family, the value of the family's own label, and its first cell."""
        cell = self.first
        for family in self.families:
            for value in family.label_values:
                yield family, value, cell
                cell += family.cells_per_series

    def cell(self, family: Family, label_value: str | None = None) -> int:
        """The first cell of a series; without a label value, of the family's first."""
        before = self.families[: self.families.index(family)]
        position = 0 if label_value is None else family.label_values.index(label_value)
        return self.first + sum(f.cells for f in before) + position * family.cells_per_series

    def gauge_cells(self) -> list[int]:
        """The cells that say how a process is now, not what it has done."""
        gauges = (Kind.GAUGE, Kind.LARGEST)
        return [
            cell
            for family, _, cell in self.series()
            if family.kind in gauges and not family.is_fact
        ]
