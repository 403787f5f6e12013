"""Interfaces of lookups, for tables in this process or in others."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple, Protocol

from torch import Tensor

from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.tower_rows import SequenceRows
from sharded_infer.lookups.lookup_work import LookupWork


class LookedUp(NamedTuple):
    """Embeddings, and the work of their lookup.

    Attributes:
        pooled: fp32 `[rows, width]`, pooled features in the spec's order.
        sequences: of the batch's samples or requests, in the spec's order.
    """

    pooled: Tensor
    ids_outside: int
    work: LookupWork
    sequences: tuple[SequenceRows, ...] = ()


class LookedUpApart(NamedTuple):
    """Pooled embeddings of features by pair and by request, and the work of their lookup.

    Attributes:
        own: fp32 `[rows, width]`, the features of which each sample has its own bag.
        shared: fp32 `[request_rows, width]`, the features that samples share.
        ids_outside: number of ids outside their tables.
    """

    own: Tensor
    shared: Tensor
    ids_outside: int
    work: LookupWork
    sequences: tuple[SequenceRows, ...] = ()


class Lookups(Protocol):
    """Embeddings of a model's features; thread-safe."""

    @property
    def backends(self) -> Mapping[str, str]:
        """Name of the kernel backend for each row format."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each pooled feature, in the spec's order."""
        ...

    def look_up(
        self, batch: ModelInput, *, rows: int, deadline: float = inf, may_default: bool = False
    ) -> LookedUp:
        """Looks up every feature, and pools those that are in no sequence.

        Args:
            batch: B samples, with bags for every feature.
            rows: rows of the result, at least B; rows from B on are zeros.
            deadline: for waits on other hosts, on the monotonic clock.
            may_default: allow default rows for a lost host.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
            ShardedInferError: rows could not be read; of another host, the message names it.
        """
        ...

    def look_up_apart(
        self,
        batch: ModelInput,
        *,
        rows: int,
        request_rows: int,
        deadline: float = inf,
        may_default: bool = False,
    ) -> LookedUpApart:
        """Looks up and pools every feature, without repeating shared bags; see `look_up`.

        Args:
            batch: its samples share a group of features.
            rows: rows of the features by pair, at least B; rows from B on are zeros.
            request_rows: rows of the shared features, at least one for each request.
        """
        ...
