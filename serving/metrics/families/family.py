"""Metric families, and the cells of a block of families."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import partial


class Kind(StrEnum):
    """Type of a family, which decides how its cells become samples on the page."""

    COUNTER = "counter"
    GAUGE = "gauge"
    # A gauge that shows the largest value of the processes, not their sum.
    LARGEST = "largest"
    HISTOGRAM = "histogram"


class Detail(IntEnum):
    """Level of counting (`serve --metrics`), or the lowest level that counts a family."""

    OFF = 0
    BASIC = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family.

    Attributes:
        name: as on the page, without `_total`.
        readers: who reads it for what, for the reference page.
        label: its own label, beside the block's; several are separated by commas.
        label_values: one series each. For `rank`, `output`, `feature` and `table` these are places,
            which each version names.
        hidden_zeros: label values that are shown only above 0.
        boundaries: of a histogram, each included in its bucket.
        detail: the lowest level that counts it.
        spare_buckets: of a histogram, buckets for each version's own boundaries.
        is_fact: a fact about a version, which outlives the process that set it.
    """

    name: str
    help: str
    readers: str
    kind: Kind
    label: str = ""
    label_values: tuple[str, ...] = ("",)
    hidden_zeros: frozenset[str] = frozenset()
    boundaries: tuple[float, ...] = ()
    detail: Detail = Detail.BASIC
    spare_buckets: int = 0
    is_fact: bool = False

    @property
    def buckets(self) -> int:
        """Buckets of a histogram, overflow and spare ones included."""
        return len(self.boundaries) + self.spare_buckets + 1

    @property
    def cells_per_series(self) -> int:
        """A histogram's buckets and sum, or one."""
        return self.buckets + 1 if self.kind is Kind.HISTOGRAM else 1

    @property
    def cells(self) -> int:
        """Cells of all series."""
        return len(self.label_values) * self.cells_per_series

    @property
    def full_name(self) -> str:
        """Name in queries; a histogram's has the suffix `_bucket`, `_sum` or `_count`."""
        return self.name + ("_total" if self.kind is Kind.COUNTER else "")


counter = partial(Family, kind=Kind.COUNTER)
gauge = partial(Family, kind=Kind.GAUGE)
largest = partial(Family, kind=Kind.LARGEST)
histogram = partial(Family, kind=Kind.HISTOGRAM)


@dataclass(frozen=True, slots=True)
class FamilyBlock:
    """Families with adjacent cells, in their order, and common values of the block's labels."""

    families: tuple[Family, ...]
    label_values: tuple[str, ...]
    first: int

    @property
    def cells(self) -> int:
        """Number of cells."""
        return sum(family.cells for family in self.families)

    def series(self) -> Iterator[tuple[Family, str, int]]:
        """Each series: its family, the value of the family's own label, and its first cell."""
        cell = self.first
        for family in self.families:
            for value in family.label_values:
                yield family, value, cell
                cell += family.cells_per_series

    def cell(self, family: Family, label_value: str | None = None) -> int:
        """First cell of a series; without a label value, of the family's first series."""
        before = self.families[: self.families.index(family)]
        position = 0 if label_value is None else family.label_values.index(label_value)
        return self.first + sum(f.cells for f in before) + position * family.cells_per_series

    def gauge_cells(self) -> list[int]:
        """Cells of gauges that describe a process."""
        gauges = (Kind.GAUGE, Kind.LARGEST)
        return [
            cell
            for family, _, cell in self.series()
            if family.kind in gauges and not family.is_fact
        ]
