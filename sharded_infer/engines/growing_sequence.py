"""Histories of a batch whose user's stage computes the positions behind a known beginning alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernels.abi.user_states import Keeping
from kernels.sequences.user_states import HistoryColumn, Prefixes
from sharded_infer.engines.user_cache import UserCache
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.layout import Packed, windows
from sharded_infer.lookups.lookup_work import LookedUp
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.towers.split.user_split import UserSplit


@dataclass(frozen=True, slots=True)
class GrowingSequence:
    """The sequence of a growing stage.

    Attributes:
        number: in the spec's order.
        widths: numbers a position of each of its inputs, by position in `ModelSpec.input_features`.
    """

    number: int
    spec: SequenceSpec
    widths: Mapping[int, int]

    @classmethod
    def of(cls, split: UserSplit, spec: ModelSpec) -> Self | None:
        """The sequence of a split tower; None if its user's stage does not grow."""
        growing = split.growing
        if isinstance(growing, str):
            return None
        inputs = {split.shared[at] for at in growing.by_position}
        for number, (name, sequence) in enumerate(spec.sequences.items()):
            if inputs <= set(sequence.inputs(name)):
                widths = {
                    at: sequence.dense.get(feature.name, 1)
                    for at, feature in enumerate(spec.input_features)
                    if feature.sequence == name or feature.name in sequence.dense
                }
                return cls(number, sequence, widths)
        return None

    def columns(self, batch: ModelInput) -> list[HistoryColumn]:
        """Each input of the histories of a batch's requests."""
        columns: list[HistoryColumn] = []
        for group in batch.groups:
            if self.widths.keys().isdisjoint(group.features):
                continue
            end = 0
            for feature, lengths in zip(group.features, group.lengths, strict=True):
                begin, width = end, self.widths.get(feature)
                end += int(lengths[0] if len(lengths) == 1 else lengths.sum())
                if width is not None:
                    columns.append(HistoryColumn(group.values[begin:end], lengths, width))
        return columns


class KnownHistories:
    """The histories of a batch's R requests, whose beginnings may be known.

    Attributes:
        lengths: int64 `[R]`, used positions.
        prefixes: known beginnings; None without a cache.
        packed: the positions behind them.
        users: as `LookupWork.users`.
    """

    def __init__(
        self,
        growing: GrowingSequence,
        batch: ModelInput,
        counts: NDArray[np.int64],
        cache: UserCache | None,
    ) -> None:
        """`counts` are int64 `[R]`, candidates of each request."""
        columns = growing.columns(batch)
        _, lengths, width = columns[0]
        lengths = lengths if width == 1 else lengths // width
        self._firsts, self.lengths = windows(lengths, growing.spec)
        self._number, self._counts, requests = growing.number, counts, len(lengths)
        self.prefixes: Prefixes | None = None
        self.users = 0, requests, 0, 0
        if cache is None:
            self.forget()
            return
        found = self.prefixes = cache.prefixes(columns, self._firsts, self.lengths)
        firsts, behind = found.behind
        self.packed = Packed.of(growing.number, firsts, behind, counts)
        self.users = found.hits, requests - found.hits, found.known, found.computed

    def forget(self) -> None:
        """Takes all positions as unknown."""
        self.packed = Packed.of(self._number, self._firsts, self.lengths, self._counts)
        if self.prefixes is not None:
            self.prefixes.blocks["count"] = 0
            requests = len(self.lengths)
            self.users = 0, requests, 0, int(self.lengths.sum())

    def keep(self, lookup: LookedUp, keeping: Keeping = Keeping.WORTHWHILE) -> None:
        """Chooses which states are kept, of requests without default rows.

        `lookup` is that of the batch.
        """
        if self.prefixes is None:
            return
        if keeping is not Keeping.WORTHWHILE:
            self.prefixes.blocks["keeping"] = keeping
        if defaults := lookup.work.defaults:
            # Default rows are for this response alone, which reports them.
            firsts = np.cumsum(self._counts) - self._counts
            taken = np.logical_or.reduce([samples[firsts] for samples in defaults.values()])
            self.prefixes.blocks["keeping"][taken] = Keeping.NOTHING
