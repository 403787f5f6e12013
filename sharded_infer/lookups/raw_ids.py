"""Raw ids of bags that a shard host maps to rows, or refuses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.bags import Bags
from kernels.bounds import locate
from sharded_infer.errors import RequestError
from sharded_infer.inputs.id_map import IdMap, keep_ids
from sharded_infer.lookups.placement import PlacedPiece
from sharded_infer.tensors import tensor_of


class UnknownId(NamedTuple):
    """A raw id, by group and its entry and bag, that an id map must know but does not."""

    group: int
    entry: int
    bag: int
    raw_id: int


class UnknownIdError(RequestError):
    """A lookup that a host refuses for one raw id.

    Attributes:
        where: the id, and its place in the lookup.
        host: the refusing host; None: not yet known.
    """

    def __init__(self, where: UnknownId, host: int | None = None) -> None:
        self.where, self.host = where, host
        super().__init__(
            f"group {where.group}, entry {where.entry}, bag {where.bag}: id {where.raw_id} is not "
            "in the id map of its table"
        )


def map_bags(
    group: int, bags: Bags, pieces: Sequence[tuple[PlacedPiece, IdMap]]
) -> tuple[Bags, NDArray[np.int64] | None]:
    """Maps the raw ids of a group: R bags of checked lengths for each of E entries.

    Args:
        group: its number in the lookup.
        pieces: of each entry, with the id map of its table.

    Returns:
        Bags of rows relative to their pieces, without the ids that their maps leave out; and int64
        `[E, R]`, unknown ids of each bag, None if there are none.

    Raises:
        UnknownIdError: an id is unknown, and its map says `error`.
        RequestError: an id's row is outside its piece.
    """
    lengths = bags.lengths.numpy()
    values = bags.values.numpy().copy()
    is_unknown = np.zeros(len(values), np.bool_)
    first = 0
    for (piece, id_map), count in zip(pieces, lengths.sum(1).tolist(), strict=True):
        part = slice(first, first + count)
        rows = id_map.known(values[part])
        unknown = np.flatnonzero(rows < 0)
        if len(unknown):
            at = first + int(unknown[0])
            if id_map.unknown == "error":
                raise UnknownIdError(UnknownId(group, *locate(bags, at), int(values[at])))
            is_unknown[first + unknown] = True
            rows[unknown] = id_map.unknown_rows(values[first + unknown])
        relative = rows - piece.first_row
        outside = np.flatnonzero((rows >= 0) & ((relative < 0) | (relative >= piece.rows)))
        if len(outside):
            at = int(outside[0])
            entry, bag = locate(bags, first + at)
            raise RequestError(
                f"group {group}, entry {entry}, bag {bag}: id {values[first + at]} of table "
                f"{id_map.table.name!r} has row {rows[at]}, expected one of its piece, "
                f"{piece.first_row} to {piece.first_row + piece.rows - 1}"
            )
        values[part] = np.where(rows < 0, -1, relative)
        first += count
    mapped = Bags(tensor_of(values), bags.lengths, bags.weights)
    if not is_unknown.any():
        return mapped, None
    owners = np.repeat(np.arange(lengths.size), lengths.reshape(-1))
    counts = np.bincount(owners[is_unknown], minlength=lengths.size).reshape(lengths.shape)
    kept = values >= 0
    return mapped if kept.all() else keep_ids(mapped, tensor_of(kept)), counts
