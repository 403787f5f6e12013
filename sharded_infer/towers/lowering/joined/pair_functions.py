"""Biases of pairs of positions that are a step function of a difference, in sequence towers.

    spans = ages[:, None, :] - ages[:, :, None]
    fixed + weights[clamp(to_int(log(clamp(spans, 1)) / 0.301), 0, 63)]

See `kernels.sequences.pair_biases`. The function is evaluated for its values, whatever its
operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from kernels.sequences.pair_biases import StepFunction, step_function
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.rewriting import CLAMPS, RESHAPES
from sharded_infer.towers.lowering.tensor_kinds import Kind

_aten = torch.ops.aten
# Operators that keep the numbers.
RESHAPING: Final = (
    *(*RESHAPES, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.view_as.default),
)
# Of one tensor, with numbers and constants.
_BY_NUMBER: Final = (
    *(*CLAMPS, _aten.abs.default),
    *(_aten.log.default, _aten.log2.default, _aten.log1p.default, _aten.exp.default),
    *(_aten.sqrt.default, _aten.neg.default, _aten.floor.default, _aten.relu.default),
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor),
    *(_aten.to.dtype, _aten._to_copy.default),
    *(_aten.index_select.default, _aten.embedding.default, _aten.index.Tensor),
)


class PairFunction(NamedTuple):
    """A bias for each pair of positions.

    Attributes:
        numbers: the node with a number of each position.
        fixed: addend of the function, `[L, L]`; None: nothing.
        turned: True if a difference is the own number minus the other one.
    """

    function: StepFunction
    numbers: Node
    fixed: Node | None
    turned: bool


def pair_function(
    program: GraphModule, end: Node, kinds: Sequence[Mapping[Node, Kind]]
) -> PairFunction | None:
    """The step function that computes a node's `[..., L, L]`; None if none does."""
    fixed, rest = None, end
    if end.target is _aten.add.Tensor and len(end.all_input_nodes) == 2:
        made = [one for one in end.all_input_nodes if not _is_cut_of_constant(program, one)]
        if len(made) == 1:
            [rest] = made
            [fixed] = (one for one in end.all_input_nodes if one is not rest)
    chain = _chain(program, rest)
    if chain is None:
        return None
    turned = _turned(chain[0], kinds)
    numbers = _base(chain[0].args[0])
    if turned is None or numbers is None or numbers is not _base(chain[0].args[1]):
        return None
    try:
        function = step_function(_asked(program, chain))
    except (IndexError, RuntimeError):
        # NaN becomes an index outside the table, an error that only requests report.
        return None
    return None if function is None else PairFunction(function, numbers, fixed, turned)


def _is_cut_of_constant(program: GraphModule, node: object) -> bool:
    while isinstance(node, Node) and node.target is _aten.slice.Tensor:
        node = node.args[0]
    return constant_of(program, node) is not None


def _chain(program: GraphModule, end: Node) -> list[Node] | None:
    chain = [end]
    while True:
        node = chain[0]
        inputs = [one for one in node.all_input_nodes if constant_of(program, one) is None]
        if node.target is _aten.sub.Tensor and len(inputs) == 2:
            return None if node.kwargs or len(chain) == 1 else chain
        # A view's model is a node of the chain, before it.
        source = inputs[:1] if node.target is _aten.view_as.default else inputs
        if len(source) != 1 or node.target not in (*_BY_NUMBER, *RESHAPING):
            return None
        chain.insert(0, source[0])


def _turned(difference: Node, kinds: Sequence[Mapping[Node, Kind]]) -> bool | None:
    """True if a difference's second number is the other position's; None if not of pairs."""
    found = set()
    for of in kinds:
        shapes = [of[one][1] if one in of else torch.Size() for one in difference.args]  # type: ignore[index]
        numbers = {shape.numel() for shape in shapes}
        if any(len(shape) < 2 for shape in shapes) or len(numbers) != 1:
            return None
        [count] = numbers
        ends = [tuple(shape[-2:]) for shape in shapes]
        if sorted(ends) != sorted([(1, count), (count, 1)]):
            return None
        found.add(ends[0] == (count, 1))
    return found.pop() if len(found) == 1 else None


def _base(node: object) -> Node | None:
    while isinstance(node, Node) and node.target in RESHAPING:
        node = node.args[0]
    return node if isinstance(node, Node) else None


def _asked(program: GraphModule, chain: Sequence[Node]) -> Callable[[Tensor], Tensor]:
    def function(numbers: Tensor) -> Tensor:
        values: dict[Node, Any] = {chain[0]: numbers.reshape(1, 1, -1)}

        def value(node: Node) -> Any:
            return values[node] if node in values else constant_of(program, node)

        for node in chain[1:]:
            target: Any = node.target
            values[node] = target(*map_arg(node.args, value), **map_arg(node.kwargs, value))
        found: Tensor = values[chain[-1]]
        return found.flatten()

    return function
