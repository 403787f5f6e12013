"""Layouts of one request's tensors: rows of positions, one row, or pairs."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch.fx import Node

from kernels.sequences.passes import POSITIONS, Memory
from sharded_infer.towers.lowering.tensor_kinds import Kind


class Rows(Enum):
    """Rows of a tensor, without axes of size 1; L is a sequence's number of positions."""

    ONE = auto()  # [W]
    ALL = auto()  # [L, W]
    ALONG = auto()  # [L]
    PAIRS = auto()  # [L, L]


class Layout(NamedTuple):
    """Layout of a tensor; `lengths` are the sizes of L in the runs, None without one."""

    rows: Rows
    width: int
    lengths: tuple[int, ...] | None

    @property
    def memory(self) -> Memory:
        """A memory of such a tensor."""
        return Memory(
            POSITIONS if self.rows in (Rows.ALL, Rows.PAIRS) else 1,
            POSITIONS if self.rows in (Rows.ALONG, Rows.PAIRS) else self.width,
        )


class RequestLayouts:
    """Layouts of a program's tensors, from runs for one request with several lengths."""

    def __init__(self, kinds: Sequence[Mapping[Node, Kind]]) -> None:
        self._kinds = kinds

    def shape(self, node: Node) -> tuple[int | None, ...]:
        """A tensor's shape; None stands for a size that grows."""
        shapes = [kinds[node][1] for kinds in self._kinds]
        return tuple(
            sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)
        )

    def of(self, node: object) -> Layout | None:
        """Layout of an fp32 tensor; None for others."""
        if not isinstance(node, Node) or not all(node in kinds for kinds in self._kinds):
            return None
        found = [kinds[node] for kinds in self._kinds]
        shapes = [shape for _, shape in found]
        if any(dtype is not torch.float32 for dtype, _ in found):
            return None
        if len({len(shape) for shape in shapes}) != 1 or len(shapes[0]) < 2:
            return None
        *before, last = zip(*shapes, strict=True)
        grown = {sizes for sizes in (*before, last) if len(set(sizes)) > 1}
        large = [sizes for sizes in before if set(sizes) != {1}]
        if len(grown) > 1 or len(large) > 1 or any(sizes not in grown for sizes in large):
            return None
        lengths = grown.pop() if grown else None
        along = lengths is not None and last == lengths
        if large:
            return Layout(Rows.PAIRS if along else Rows.ALL, last[0], lengths)
        return Layout(Rows.ALONG if along else Rows.ONE, last[0], lengths)
