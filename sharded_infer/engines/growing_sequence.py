"""Histories of a batch whose user's stage computes the positions behind a known beginning alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.layout import window
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.towers.split.user_split import UserSplit


class History(NamedTuple):
    """The used part of one request's history.

    Attributes:
        columns: int64 of each input of its positions, side by side.
        start: the first position that is used.
        length: of the used ones.
    """

    columns: list[NDArray[np.int64]]
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class GrowingSequence:
    """The sequence of a growing stage.

    Attributes:
        widths: numbers a position of each of its inputs, by position in `ModelSpec.input_features`.
    """

    spec: SequenceSpec
    widths: Mapping[int, int]

    @classmethod
    def of(cls, split: UserSplit, spec: ModelSpec) -> Self | None:
        """The sequence of a split tower; None if its user's stage does not grow."""
        growing = split.growing
        if isinstance(growing, str):
            return None
        inputs = {split.shared[at] for at in growing.by_position}
        for name, sequence in spec.sequences.items():
            if inputs <= set(sequence.inputs(name)):
                widths = {
                    at: sequence.dense.get(feature.name, 1)
                    for at, feature in enumerate(spec.input_features)
                    if feature.sequence == name or feature.name in sequence.dense
                }
                return cls(sequence, widths)
        return None

    def histories(self, batch: ModelInput, requests: int) -> list[History]:
        """The histories of a batch's requests."""
        found: list[History] = []
        for group in batch.groups:
            end = 0
            for feature, lengths in zip(group.features, group.lengths.tolist(), strict=True):
                width = self.widths.get(feature)
                if width is None:
                    end += sum(lengths)
                    continue
                if not found:
                    windows = (window(length // width, self.spec) for length in lengths)
                    found = [History([], start, count) for start, count in windows]
                for history, length in zip(found, lengths, strict=True):
                    begin = end + history.start * width
                    history.columns.append(group.values[begin : begin + history.length * width])
                    end += length
        return found

    def behind(
        self, batch: ModelInput, histories: Sequence[History], known: Sequence[int]
    ) -> ModelInput:
        """The batch with the positions of its histories behind the known ones."""
        groups = [
            self._behind(group, histories, known)
            if any(feature in self.widths for feature in group.features)
            else group
            for group in batch.groups
        ]
        return replace(batch, groups=tuple(groups))

    def _behind(
        self, group: JaggedBatch, histories: Sequence[History], known: Sequence[int]
    ) -> JaggedBatch:
        lengths = group.lengths.copy()
        chosen: list[slice] = []
        end = 0
        for place, feature in enumerate(group.features):
            width = self.widths.get(feature)
            if width is None:
                count = int(lengths[place].sum())
                chosen.append(slice(end, end + count))
                end += count
                continue
            for request, length in enumerate(group.lengths[place].tolist()):
                history = histories[request]
                begin = end + (history.start + known[request]) * width
                stop = end + (history.start + history.length) * width
                chosen.append(slice(begin, stop))
                lengths[place, request] = stop - begin
                end += length
        values, weights = group.values, group.weights
        return JaggedBatch.trusted(
            group.features,
            values[chosen[0]] if len(chosen) == 1 else np.concatenate([values[c] for c in chosen]),
            lengths,
            None if weights is None else np.concatenate([weights[c] for c in chosen]),
        )
