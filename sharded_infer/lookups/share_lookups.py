"""A shard host's lookups: the pieces of one host of a plan, for fronts."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from kernels.bounds import are_inside, locate, out_of_range
from kernels.wording import counted
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.lookups.batch_lookup import look_up_batch
from sharded_infer.lookups.lookup_group import Group
from sharded_infer.lookups.lookup_plan import LookupPlan
from sharded_infer.lookups.lookup_work import StepWork
from sharded_infer.lookups.placement import PlacedPiece, share_of, split_tables
from sharded_infer.lookups.raw_ids import map_bags
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.lookups.steps import Entry, make_step
from sharded_infer.specs.model_spec import ModelSpec

# Limit of the fp32 answer to one lookup: far above 1,024 samples of DLRM-v2's 26 features of dim
# 128.
MAX_ANSWER_BYTES = 256 * 2**20
# Combinations of pieces follow from the fronts' plans and from the features that requests share.
_MAX_KNOWN = 256


class LookedUpPieces(NamedTuple):
    """Results of a host's lookup.

    Attributes:
        pooled: for each group, fp32 `[R, columns]`: its entries' columns side by side.
        work: for each fused lookup, as in `LookupWork`.
        unknown: for each group, as in `GroupAnswer`.
    """

    pooled: list[Tensor]
    work: list[StepWork]
    unknown: list[NDArray[np.int64] | None]


@dataclass(frozen=True, slots=True)
class _Pieces:
    numbers: tuple[int, ...]
    plan: LookupPlan
    width: int  # columns of all
    rows: Tensor  # int64 [entries], rows of each


# Pieces of a group, its checked bags, and `GroupAnswer.unknown`.
_Checked = tuple[_Pieces, Bags, NDArray[np.int64] | None]


class ShareLookups:
    """The lookups of one host's pieces; thread-safe.

    Sums of a table that is split by rows are those of the piece: the front adds and divides them.

    Attributes:
        pieces: a lookup of each piece by itself, by its number.
        most_entries: of all groups of a request.
        max_answer_bytes: limit of fp32 bytes per request.
        id_maps: that of each piece's table; None: its ids come as rows alone.
        first_rows: of each piece, in its table.
    """

    def __init__(
        self,
        spec: ModelSpec,
        placed: Sequence[PlacedPiece],
        held: Mapping[PlacedPiece, TablePiece],
        host: int,
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        id_maps: Mapping[str, IdMap] | None = None,
    ) -> None:
        """Groups nothing yet.

        Args:
            placed: every part of every table, also those of other hosts.
            held: the rows of the host's pieces.
            id_maps: by table, of those whose raw ids this host maps.

        Raises:
            InputError: no kernel backend supports the tables.
        """
        self.spec, self.host, self._held = spec, host, held
        self._placed, id_maps = share_of(placed, host), id_maps or {}
        self.id_maps = tuple(id_maps.get(piece.table.name) for piece in self._placed)
        self.first_rows = tuple(piece.first_row for piece in self._placed)
        self.max_answer_bytes = max_answer_bytes
        means = {table.name for table in spec.tables if table.pooling == "mean"}
        self._means = means - split_tables(placed)
        uses = Counter(feature.table.name for feature in spec.table_features)
        self.most_entries = sum(uses[piece.table.name] for piece in self._placed)
        self._known: dict[tuple[int, ...], _Pieces] = {}
        # Built now, so that an unsupported table fails.
        self.pieces = tuple(
            step.lookup
            for number in range(len(self._placed))
            for step in self._make((number,)).plan.steps
        )
        self.backends: Mapping[str, str] = {
            piece.tables.row_format.value: piece.backend for piece in self.pieces
        }

    def look_up(self, groups: Sequence[PieceBags]) -> LookedUpPieces:
        """Checks and pools the bags of one batch from a front.

        Raises:
            RequestError: a piece or an id that does not exist, or inconsistent arrays; names the
                group, the entry, what was expected and what came.
            UnknownIdError: an id map refuses a raw id.
            RequestTooLargeError: the answer would be too large.
            LostMemoryError: a table file or an id map has lost bytes.
            RowReadError: rows that are not in memory cannot be read, or not in time.
        """
        checked = self._check(groups)
        asked = []
        for pieces, bags, _ in checked:
            rows = bags.lengths.shape[1]
            out = torch.empty(rows, pieces.width)
            arrays = bags.values, bags.lengths, bags.weights
            asked.append(Group(pieces.plan, arrays, None, out, rows))
        # Fronts have the deadline; a read has its own.
        work = look_up_batch(asked, inf).steps
        unknown = [unknown for _, _, unknown in checked]
        return LookedUpPieces([group.out for group in asked], work, unknown)

    def _check(self, groups: Sequence[PieceBags]) -> list[_Checked]:
        entries = sum(len(group.pieces) for group in groups)
        if not 1 <= entries <= self.most_entries:
            raise RequestError(
                f"host {self.host}: expected 1 to {self.most_entries} entries in all groups, "
                f"got {entries}"
            )
        chosen: list[_Checked] = []
        answer_bytes = 0
        for number, group in enumerate(groups):
            chosen.append(self._check_group(number, group))
            pieces, bags, _ = chosen[-1]
            answer_bytes += 4 * pieces.width * bags.lengths.shape[1]
        if answer_bytes > self.max_answer_bytes:
            raise RequestTooLargeError(
                f"host {self.host}: the answer would be {counted(answer_bytes, 'byte')}, allowed "
                f"are {self.max_answer_bytes}"
            )
        return chosen

    def _check_group(self, number: int, group: PieceBags) -> _Checked:
        where, bags, numbers = f"group {number}", group.bags, tuple(group.pieces.tolist())
        entries, rows = bags.lengths.shape
        if group.pieces.shape != (entries,) or not entries or not rows:
            raise RequestError(
                f"{where}: expected lengths [{len(numbers)}, R] of one bag an entry and more, got "
                f"{list(bags.lengths.shape)}"
            )
        pieces = self._known.get(numbers)
        if pieces is None:
            self._check_numbers(where, numbers)
            pieces = self._make(numbers)
            if len(self._known) < _MAX_KNOWN:
                self._known[numbers] = pieces
        unknown = None
        if group.raw:
            _check_lengths(where, bags)
            bags, unknown = map_bags(number, bags, self._raw(where, numbers))
        if not are_inside(bags, pieces.rows):
            _check_lengths(where, bags)
            self._check_ids(where, bags, pieces)
        return pieces, bags, unknown

    def _raw(self, where: str, numbers: Sequence[int]) -> list[tuple[PlacedPiece, IdMap]]:
        mapped: list[tuple[PlacedPiece, IdMap]] = []
        for entry, number in enumerate(numbers):
            piece, id_map = self._placed[number], self.id_maps[number]
            if id_map is None:
                raise RequestError(
                    f"{where}, entry {entry}: raw ids of piece {number} of table "
                    f"{piece.table.name!r}, expected rows: host {self.host} has no id map of it"
                )
            mapped.append((piece, id_map))
        return mapped

    def _check_numbers(self, where: str, numbers: Sequence[int]) -> None:
        for entry, number in enumerate(numbers):
            if not 0 <= number < len(self._placed):
                raise RequestError(
                    f"{where}, entry {entry}: piece {number}, expected 0 to "
                    f"{len(self._placed) - 1} of host {self.host}"
                )

    def _check_ids(self, where: str, bags: Bags, pieces: _Pieces) -> None:
        outside = out_of_range(bags, pieces.rows)
        if outside is not None:
            position = int(outside.nonzero()[0])
            entry, bag = locate(bags, position)
            piece = self._placed[pieces.numbers[entry]]
            raise RequestError(
                f"{where}, entry {entry}, bag {bag}: id {int(bags.values[position])} is outside "
                f"piece {piece.number} of table {piece.table.name!r}, expected 0 to "
                f"{piece.rows - 1}"
            )

    def _make(self, numbers: tuple[int, ...]) -> _Pieces:
        placed = [self._placed[number] for number in numbers]
        columns = [0, *itertools.accumulate(piece.columns for piece in placed)]
        units: dict[tuple[int, int, str], list[Entry]] = defaultdict(list)
        for bags, piece in enumerate(placed):
            entry = Entry(bags, piece, columns[bags], piece.table.name in self._means)
            memory = self._held[piece].memory.data_ptr()
            units[piece.rank, memory, piece.table.row_format].append(entry)
        steps = (
            make_step(unit, self._held, order=order, split=False)
            for order, unit in enumerate(units.values())
        )
        rows = torch.tensor([piece.rows for piece in placed], dtype=torch.int64)
        return _Pieces(numbers, LookupPlan(tuple(steps)), columns[-1], rows)


def _check_lengths(where: str, bags: Bags) -> None:
    lengths, total = bags.lengths.numpy(), len(bags.values)
    # A sum of huge lengths could wrap around to the right total.
    if lengths.min() < 0 or lengths.max() > total or int(lengths.sum()) != total:
        raise RequestError(
            f"{where}: expected lengths of 0 and more that sum to {counted(total, 'id')}, got "
            f"{int(lengths.min())} to {int(lengths.max())} with sum {int(lengths.sum())}"
        )
