"""Dependence of a program's sizes on its inputs, from runs at a few sizes."""

from typing import NamedTuple

import torch
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.tensor_kinds import kinds_of
from sharded_infer.towers.program.tower_inputs import TowerInputs

# Distinct from the number of samples that is compared with one, and from usual widths.
_LENGTH, _LONGER = 3, 5


class Layout(NamedTuple):
    """Position of a value's samples: along `axis`, `block` positions each."""

    axis: int
    block: int


class Sizes:
    """Dtypes and sizes of a program's values."""

    def __init__(self, program: GraphModule, inputs: TowerInputs) -> None:
        lengths = inputs.lengths(_LENGTH)
        several = inputs.zeros(lengths)
        self._samples = len(several[0])
        self._several = kinds_of(program, several)
        self._one = kinds_of(program, [tensor[:1] for tensor in several])
        longer = inputs.lengths(_LONGER)
        same = longer == lengths
        self._longer = self._several if same else kinds_of(program, inputs.zeros(longer))

    def dtype(self, node: Node) -> torch.dtype | None:
        """The dtype of a tensor."""
        return self._several[node][0] if node in self._several else None

    def shape(self, node: Node) -> tuple[int, ...] | None:
        """Shape of one sample's part; None if the first axis is not the samples'."""
        layout = self.layout(node)
        return tuple(self._one[node][1][1:]) if layout == Layout(0, 1) else None

    def layout(self, node: Node) -> Layout | None:
        """Position of a value's samples; None if no axis, or more than one, grows with them."""
        if node not in self._several or node not in self._one:
            return None
        shape, of_one = self._several[node][1], self._one[node][1]
        if len(shape) != len(of_one):
            return None
        growing = [axis for axis, size in enumerate(shape) if size != of_one[axis]]
        if len(growing) != 1:
            return None
        [axis] = growing
        return Layout(axis, of_one[axis]) if shape[axis] == self._samples * of_one[axis] else None

    def rank(self, node: Node) -> int:
        """A tensor's number of axes."""
        return len(self._several[node][1])

    def inner(self, node: Node) -> tuple[tuple[int, ...], ...]:
        """All sizes but the first and the last, at two lengths of sequences."""
        return tuple(tuple(kinds[node][1][1:-1]) for kinds in (self._several, self._longer))

    def is_alike(self, node: Node) -> bool:
        """True if a tensor has the same shape for any number of samples."""
        return node in self._several and self._several[node] == self._one.get(node)

    def grows(self, node: Node) -> bool:
        """True if a tensor's shape depends on the length of a sequence."""
        return node not in self._several or self._several[node] != self._longer.get(node)

    def grows_along(self, node: Node, axis: int) -> bool:
        """True if its size along an axis depends on the length of a sequence."""
        return self._several[node][1][axis] != self._longer[node][1][axis]
