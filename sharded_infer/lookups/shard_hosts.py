"""Requests to shard hosts: bags of pieces by their numbers, all hosts of a batch at once."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags


class ChosenBags(NamedTuple):
    """Some entries' bags, in shared arrays: views take longer than sending most bags.

    `of` has the arrays of all; `first_entry` and `first_id` are where these begin.
    """

    of: Bags
    first_entry: int
    entries: int
    first_id: int
    id_count: int

    @property
    def bag_count(self) -> int:
        """R, bags of each entry."""
        return self.of.lengths.shape[1]

    def bags(self) -> Bags:
        """These bags alone."""
        every, end = self.of, self.first_id + self.id_count
        # torch takes longer for len().
        if self.entries == every.lengths.shape[0] and self.id_count == every.values.shape[0]:
            return every
        return Bags(
            every.values[self.first_id : end],
            every.lengths[self.first_entry : self.first_entry + self.entries],
            None if every.weights is None else every.weights[self.first_id : end],
        )


def all_bags(bags: Bags) -> ChosenBags:
    """All bags, in arrays of their own."""
    return ChosenBags(bags, 0, bags.lengths.shape[0], 0, bags.values.shape[0])


@dataclass(frozen=True, slots=True)
class StoredPieces:
    """Storage and pooling of some pieces' rows.

    `pieces` is int64 `[E, 4]`: columns, bytes of a row, the kernels' number of the row format, and
    whether sums are divided by the lengths of their bags, 1 or 0; `columns` are all.
    """

    pieces: NDArray[np.int64]
    columns: int


@dataclass(frozen=True, slots=True)
class PieceBags:
    """Bags of ids for some pieces of a host's share.

    Attributes:
        pieces: int64 `[E]`, numbers of pieces on the host; one may occur several times.
        chosen: R bags for each entry; ids are relative to the piece's first row.
        stored: lets the host answer with stored rows, which the caller pools; None: it may not.
        sum_bytes: of a number of the sums: 4 for fp32, or 2 for bf16.
        raw: ids are raw instead, and the host maps them to rows of the pieces' tables.
    """

    pieces: NDArray[np.int64]
    chosen: ChosenBags
    stored: StoredPieces | None = None
    sum_bytes: int = 4
    raw: bool = False

    @classmethod
    def of(cls, pieces: NDArray[np.int64], bags: Bags) -> "PieceBags":
        """Bags in arrays of their own."""
        return cls(pieces, all_bags(bags))

    @property
    def bags(self) -> Bags:
        """The bags alone."""
        return self.chosen.bags()


class GroupAnswer(NamedTuple):
    """A host's answer for one group.

    Attributes:
        pooled: fp32 `[R, columns]`, the entries' columns side by side in the request's order; means
            are divided where the table is not split by rows.
        unknown: int64 `[E, R]`, raw ids of each bag that the table's id map does not know; None:
            all are known, or none is raw.
    """

    pooled: Tensor
    unknown: NDArray[np.int64] | None = None


class StartedLookup(Protocol):
    """Lookups of one batch that were started; either `finish` or `cancel` is called, once."""

    def finish(self) -> Mapping[int, Sequence[GroupAnswer]]:
        """Waits for all hosts; returns by host, for each of its groups, the answer.

        Raises:
            UnknownIdError: a host refuses a raw id; the lookups of the others have been cancelled.
            ShardedInferError: a host failed; its message names the host. A host that may be lost
                raises no error: it is not in the result.
        """

    def cancel(self) -> None:
        """Gives the lookups up, without waiting."""


class ShardHosts(Protocol):
    """Lookups of one version's pieces that other processes hold; thread-safe."""

    @property
    def hosts(self) -> frozenset[int]:
        """Available hosts of the plan."""

    @property
    def lost(self) -> frozenset[int]:
        """Hosts of which no process has answered for a while."""

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        """Starts the lookups of one batch on all hosts, and returns at once.

        Args:
            asked: groups of bags by host, at least one a host; all tables of a version are asked at
                most once a feature.
            deadline: after which they are given up, on the monotonic clock.
            may_lose: hosts that are not needed if none of their processes can answer.

        Raises ShardedInferError as `StartedLookup.finish`; nothing has been started.
        """


@dataclass(frozen=True, slots=True)
class Front:
    """A front's access to the rows of a plan.

    `host` is the host of the plan whose ranks are in this process; None: no rank is.
    """

    hosts: ShardHosts
    host: int | None = None
