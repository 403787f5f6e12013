"""Inputs of a tower: names and shapes, in the order in which its program takes them.

dense        fp32 [B, width]        each dense input
sequence     fp32 [B, L, width]     each sequence: its members' rows, and
  lengths    int64 [B]              <name>_lengths: the positions in use, 0 to L
  companion  fp32 [B, L, width]     each of its dense companions
  ids        int64 [B, L]           <feature>_ids: of each of its features that has them
embeddings   fp32 [B, width]        always the last
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.export import Dim

from sharded_infer.errors import TowerError
from sharded_infer.specs.sequence_input import IDS, LENGTHS, SequenceInput

# Name of the last input.
EMBEDDINGS: Final = "embeddings"
# Not 1, which outputs could have for other reasons. Towers also run at this size.
ZEROS_BATCH: Final = 4


@dataclass(frozen=True, slots=True)
class TowerInputs:
    """Inputs of a tower.

    Attributes:
        dense: name and width of each dense input.
        embedding_width: of the pooled features together; 0 if there are none.
    """

    dense: Mapping[str, int]
    embedding_width: int
    sequences: Mapping[str, SequenceInput] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all inputs, in the program's order."""
        return tuple(shape.name for shape in self._shapes())

    @property
    def widths(self) -> Mapping[str, int]:
        """Last size of each input but lengths and ids."""
        return {one.name: one.width for one in self._shapes() if one.width is not None}

    @property
    def shortest(self) -> tuple[int, ...]:
        """Fewest positions of each sequence that a sample uses."""
        return tuple(sequence.min_length for sequence in self.sequences.values())

    @property
    def longest(self) -> tuple[int, ...]:
        """Largest number of positions of each sequence."""
        return tuple(sequence.max_length for sequence in self.sequences.values())

    def lengths(self, wanted: int) -> tuple[int, ...]:
        """Each sequence's number of positions that is nearest to `wanted`."""
        return tuple(one.nearest(wanted) for one in self.sequences.values())

    def all_of(self, names: Container[str]) -> tuple[str, ...]:
        """Inputs of some dense inputs and sequences, in the program's order."""
        sequences = list(self.sequences)
        return tuple(
            shape.name
            for shape in self._shapes()[:-1]
            if (shape.name if shape.sequence is None else sequences[shape.sequence]) in names
        )

    def check(self) -> None:
        """Raises TowerError when a width or a length is invalid, or two inputs share a name."""
        for name, width in self.widths.items():
            # With sequences there may be no pooled feature.
            if width < 1 and not (name == EMBEDDINGS and width == 0 and self.sequences):
                raise TowerError(f"expected inputs of width 1 or more, got {name!r} of {width}")
        for name, sequence in self.sequences.items():
            if sequence.max_length < 1:
                raise TowerError(
                    f"sequence {name!r}: expected a max_length of 1 or more, "
                    f"got {sequence.max_length}"
                )
        for name, count in Counter(self.names).items():
            if count > 1:
                own = " (the last input has it)" if name == EMBEDDINGS else ""
                raise TowerError(f"two inputs have the name {name!r}{own}")

    def zeros(self, lengths: Sequence[int], device: torch.device | None = None) -> list[Tensor]:
        """Zeros for four samples, on the CPU by default; sequences use all positions.

        `lengths` has the positions of each sequence.
        """
        return [
            torch.full((ZEROS_BATCH,), shape.positions(lengths), device=device)
            if shape.are_lengths
            else torch.zeros(shape.sizes(ZEROS_BATCH, lengths), dtype=shape.dtype, device=device)
            for shape in self._shapes()
        ]

    def samples(self, batch: int, lengths: Sequence[int]) -> list[Tensor]:
        """Random inputs, the same at every call; `lengths` has each sequence's positions.

        The first sample's sequences use all positions, the second one's as few as are allowed,
        others any number. Ids are 0 or 1, which a table of any size in the tower has.
        """
        generator = torch.Generator().manual_seed(batch)

        def made(shape: _Shape) -> Tensor:
            if shape.width is not None:
                return torch.randn(shape.sizes(batch, lengths), generator=generator)
            if not shape.are_lengths:
                return torch.randint(0, 2, shape.sizes(batch, lengths), generator=generator)
            most = shape.positions(lengths)
            least = 0 if shape.sequence is None else self.shortest[shape.sequence]
            used = torch.randint(least, most + 1, (batch,), generator=generator)
            used[:2] = torch.tensor([most, least])[:batch]
            return used

        return [made(shape) for shape in self._shapes()]

    def empty(self, inputs: Sequence[Tensor]) -> Tensor:
        """Bool `[B]`: samples of such inputs with a sequence of no positions, or of zero ids."""
        found = torch.zeros(len(inputs[0]), dtype=torch.bool)
        for shape, tensor in zip(self._shapes(), inputs, strict=True):
            if shape.width is None:
                found |= (tensor == 0).view(len(tensor), -1).all(1)
        return found

    @property
    def roles(self) -> tuple[tuple[int | None, ...], ...]:
        """For each input's leading sizes, the sequence whose length it is; None: samples."""
        return tuple(
            (None,) if shape.are_lengths or shape.sequence is None else (None, shape.sequence)
            for shape in self._shapes()
        )

    @property
    def lengths_of(self) -> tuple[int | None, ...]:
        """For each input, the sequence whose lengths it has; None for others."""
        return tuple(one.sequence if one.are_lengths else None for one in self._shapes())

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """Variable sizes of each input, for `torch.export`."""
        batch = Dim("batch", min=1)
        lengths = [
            Dim(length_symbol(number), min=one.nearest(1), max=one.max_length)
            if one.grows
            else None
            for number, one in enumerate(self.sequences.values())
        ]
        return tuple(
            {
                axis: batch if role is None else lengths[role]
                for axis, role in enumerate(roles)
                if role is None or lengths[role] is not None
            }
            for roles in self.roles
        )

    def _shapes(self) -> "list[_Shape]":
        shapes = [_Shape(name, width) for name, width in self.dense.items()]
        for number, (name, sequence) in enumerate(self.sequences.items()):
            lengths = _Shape(name + LENGTHS, None, number, are_lengths=True)
            shapes += [_Shape(name, sequence.width, number), lengths]
            shapes += [_Shape(dense, width, number) for dense, width in sequence.dense.items()]
            shapes += [_Shape(feature + IDS, None, number) for feature in sequence.ids]
        return [*shapes, _Shape(EMBEDDINGS, self.embedding_width)]


def length_symbol(number: int) -> str:
    """Name of a sequence's number of positions in torch's messages."""
    return f"length{number}"


@dataclass(frozen=True, slots=True)
class _Shape:
    """Shape of one input.

    Attributes:
        width: last size; None for lengths and ids, which are whole numbers.
        sequence: number of its sequence; None for other inputs.
        are_lengths: True for the lengths of a sequence.
    """

    name: str
    width: int | None
    sequence: int | None = None
    are_lengths: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.width is None else torch.float32

    def positions(self, lengths: Sequence[int]) -> int:
        """Positions of its sequence; 1 without one."""
        return 1 if self.sequence is None else lengths[self.sequence]

    def sizes(self, batch: int, lengths: Sequence[int]) -> tuple[int, ...]:
        """All sizes; not of lengths."""
        sizes = [batch]
        if self.sequence is not None:
            sizes.append(lengths[self.sequence])
        if self.width is not None:
            sizes.append(self.width)
        return tuple(sizes)
