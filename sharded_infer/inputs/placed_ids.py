"""Tables whose rows have another order than their ids: where the row of each id lies.

Ids are judged first, as the spec's `out_of_range` and `padding_idx` say; then they become rows.
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
        """Keeps them.

        Args:
            file: that the places map; None: they lie in memory.
        """
        self.table, self.places, self._file = table, places, file

    @property
    def watch(self) -> Watch | None:
        """What tells that the mapped file has lost bytes; None: the places lie in memory."""
        return None if self._file is None else self._file.watch

    def check(self) -> None:
        """As `check_file`: all places were read when they were opened."""
        self.check_file()

    def check_file(self) -> None:
        """Refuses a mapped file that has become shorter, also where no id was looked up.

        Raises:
            LostMemoryError: names the file.
        """
        if self._file is not None:
            self._file.check_size()

    def check_read(self) -> None:
        """Refuses a mapped file that has become shorter, after places were read.

        Raises:
            LostMemoryError: names the file.
        """
        if self._file is not None:
            self._file.check()


# What stands between the ids of a table and its rows.
RowMap = IdMap | PlacedIds


class IdPlacing:
    """Puts rows in place of the judged ids of some features."""

    def __init__(self, features: Sequence[FeatureSpec], maps: Mapping[str, RowMap]) -> None:
        """Finds the features of tables whose rows are ordered.

        Args:
            features: those of the bags to come, in their order.
            maps: by table; of every ordered table.

        Raises:
            InternalError: one is missing.
        """
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
        """The bags with rows; -1, an id that is left out of a sequence, stays.

        Raises:
            LostMemoryError: the file of some places has become shorter.
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
