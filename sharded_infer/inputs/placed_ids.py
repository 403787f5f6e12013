"""Row places of tables whose rows are not in id order.

Ids are first checked by the spec's `out_of_range` and `padding_idx`; then they become rows.
"""

from collections.abc import Mapping, Sequence

from kernels.bags import Bags
from kernels.ids.row_places import RowPlaces
from kernels.mapped_file import MappedFile, Watch
from sharded_infer.errors import InternalError
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.specs.model_spec import FeatureSpec, TableSpec
from sharded_infer.tensors import tensor_of


class PlacedIds:
    """The places of one table's rows. Thread-safe."""

    def __init__(self, table: TableSpec, places: RowPlaces, file: MappedFile | None = None) -> None:
        self.table, self.places, self._file = table, places, file

    @property
    def watch(self) -> Watch | None:
        """Truncation check of the mapped file; None: the places are in memory."""
        return None if self._file is None else self._file.watch

    def check(self) -> None:
        """As `check_file`: all places were read when opened."""
        self.check_file()

    def check_file(self) -> None:
        """Refuse a truncated mapped file, also without lookups; LostMemoryError naming it."""
        if self._file is not None:
            self._file.check_size()

    def check_read(self) -> None:
        """Refuse a mapped file truncated during reads; LostMemoryError naming it."""
        if self._file is not None:
            self._file.check()


# Mapping from a table's ids to its rows.
RowMap = IdMap | PlacedIds


class IdPlacing:
    """Replaces the checked ids of some features by rows."""

    def __init__(self, features: Sequence[FeatureSpec], maps: Mapping[str, RowMap]) -> None:
        """Find the features, in bag order, of ordered tables; InternalError if a map is missing."""
        self._placed: list[tuple[int, PlacedIds]] = []
        for position, feature in enumerate(features):
            if not feature.table.ordered:
                continue
            placed = maps.get(feature.table.name)
            if not isinstance(placed, PlacedIds):
                raise InternalError(
                    f"table {feature.table.name!r}: the places of its rows were not opened"
                )
            self._placed.append((position, placed))

    def apply(self, bags: Bags) -> Bags:
        """The bags with rows; -1, a dropped id of a sequence, stays.

        Raises LostMemoryError if a file of places was truncated.
        """
        if not self._placed:
            return bags
        ends = bags.lengths.sum(1).cumsum(0).tolist()
        values = bags.values.numpy().copy()
        for position, placed in self._placed:
            part = slice(ends[position - 1] if position else 0, ends[position])
            values[part] = placed.places.rows(values[part])
            placed.check_read()
        return Bags(tensor_of(values), bags.lengths, bags.weights)
