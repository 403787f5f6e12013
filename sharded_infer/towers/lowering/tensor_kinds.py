"""Dtypes and shapes of a program's tensors, recorded in a run."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

Kind = tuple[torch.dtype, torch.Size]

# Numbers of the largest tensor whose contents are examined: pairs of 4,096 positions.
MOST_NUMBERS: Final = 2**24


def kinds_of(program: GraphModule, inputs: Sequence[Tensor]) -> dict[Node, Kind]:
    """Dtypes and shapes of all tensors but constants in one run of a program."""
    return kinds_and_sizes(program, inputs)[0]


def kinds_and_sizes(
    program: GraphModule, inputs: Sequence[Tensor]
) -> tuple[dict[Node, Kind], dict[Node, int]]:
    """`kinds_of`, and the whole numbers that nodes compute, such as sizes."""
    seen = _Seen(program)
    with torch.inference_mode():
        seen.run(*inputs)
    return seen.kinds, seen.sizes


class _Seen(Interpreter):
    """A run that keeps every tensor's dtype and shape, and the sizes."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.kinds: dict[Node, Kind] = {}
        self.sizes: dict[Node, int] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        # Packed weights have no readable strides; a constant's are not needed.
        if isinstance(result, Tensor) and n.op != "get_attr":
            self.kinds[n] = result.dtype, result.shape
        elif isinstance(result, int):
            self.sizes[n] = result
        return result
