"""The graph by request of a user's stage, fused for runs of one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor
from torch.fx import GraphModule

from sharded_infer.towers.lowering.canonical_forms import select_biases
from sharded_infer.towers.lowering.joined.joined_passes import join_passes
from sharded_infer.towers.lowering.sequences.attention import fuse_attention, read_columns
from sharded_infer.towers.lowering.sequences.canonical_layout import use_canonical_layout
from sharded_infer.towers.lowering.sequences.divided_products import divide_products
from sharded_infer.towers.lowering.sequences.position_values import Symbol
from sharded_infer.towers.lowering.sequences.row_selection import select_rows
from sharded_infer.towers.lowering.sequences.row_steps import fuse_row_steps
from sharded_infer.towers.lowering.sequences.unpadded_sequences import (
    UnpaddedSequences,
    remove_padding,
)
from sharded_infer.towers.program.tower_inputs import TowerInputs

# Positions in the runs that find dtypes and shapes: no two sequences have the same.
_FIRST, _SECOND = (3, 1), (5, 2)
# Of pairs: no sequence has as many positions.
_PAIRS = 2, 6


@dataclass(frozen=True, slots=True)
class UserInputs:
    """Inputs of a graph by request, and of the one by pair.

    Attributes:
        inputs: of the whole program.
        shared: True for inputs by request; without the embeddings.
        width: of the embeddings by request.
    """

    inputs: TowerInputs
    shared: Sequence[bool]
    width: int

    def runs(self) -> list[list[Tensor]]:
        """Zeros for one request, of several lengths, whose sequences have no padding."""
        return list(map(self._users, self._lengths()))

    def pairs(self, request: GraphModule) -> list[list[Tensor]]:
        """Zeros for the graph by pair, for several numbers of pairs and lengths."""
        found = []
        for count, lengths in zip(_PAIRS, self._lengths(), strict=True):
            *zeros, embeddings = self.inputs.zeros(lengths)
            own = [
                one[:1].expand(count, *one.shape[1:]).contiguous()
                for one, flag in zip(zeros, self.shared, strict=True)
                if not flag
            ]
            own.append(torch.zeros(count, embeddings.shape[1] - self.width))
            with torch.inference_mode():
                given: tuple[Tensor, ...] = request(*self._users(lengths))
            found.append([*own, torch.zeros(count, dtype=torch.int64), *given])
        return found

    def _users(self, lengths: Sequence[int]) -> list[Tensor]:
        users = compress(self.inputs.zeros(lengths)[:-1], self.shared)
        return [*(one[:1] for one in users), torch.zeros(1, self.width)]

    def whole(self) -> UnpaddedSequences:
        """Sequences of any length by request, and their lengths' inputs."""
        symbols: dict[int | None, Symbol] = {
            number: Symbol(number, one.max_length, one.nearest(1))
            for number, one in enumerate(self.inputs.sequences.values())
            if one.grows
            and one.min_length <= _length(*_FIRST, number)
            and one.max_length >= _length(*_SECOND, number)
        }
        roles = compress(self.inputs.roles, self.shared)
        sequences = [symbols.get(axes[1]) if len(axes) > 1 else None for axes in roles]
        lengths = map(symbols.get, compress(self.inputs.lengths_of, self.shared))
        ends = self._users(self.inputs.lengths(1)), self._users(self.inputs.longest)
        return UnpaddedSequences(tuple(sequences), tuple(lengths), (*self.runs(), *ends))

    def by_position(self) -> list[bool]:
        """Flags of the inputs by request and of the embeddings: a row for each position."""
        grows = [one.grows for one in self.inputs.sequences.values()]
        roles = compress(self.inputs.roles, self.shared)
        lengths = compress(self.inputs.lengths_of, self.shared)
        of_sequences = [
            length is not None or (len(axes) > 1 and axes[1] is not None and grows[axes[1]])
            for axes, length in zip(roles, lengths, strict=True)
        ]
        return [*of_sequences, False]

    def _lengths(self) -> list[list[int]]:
        return [
            [
                one.nearest(_length(*run, number))
                for number, one in enumerate(self.inputs.sequences.values())
            ]
            for run in (_FIRST, _SECOND)
        ]


def _length(first: int, times: int, number: int) -> int:
    return first + times * number


def fuse_user(
    request: GraphModule, inputs: UserInputs, unpadded: UnpaddedSequences | None = None
) -> int:
    """Fuses operators in place; returns the number of changes that need unpadded sequences."""
    runs = inputs.runs()

    def remove() -> int:
        return 0 if unpadded is None else remove_padding(request, unpadded)

    changes = remove()
    select_biases(request)
    fuse_attention(request, None if unpadded is None else unpadded.values(request))
    use_canonical_layout(request, runs)
    select_rows(request, runs)
    # The rows that are read are chosen by positions now.
    changes += remove()
    divide_products(request, runs)
    read_columns(request, runs)
    fuse_row_steps(request, runs, fewest=1)
    join_passes(request, runs)
    return changes
