"""Layers on each pair of a candidate and one request's positions, by one pass.

    y = linear(rows * candidate, W, b) + by_position + by_candidate
    y = prelu(y), relu(y) or sigmoid(y)
    y = linear(y, V, c), of one output
        ->  y = pair_layers(rows, candidate, by_position, by_candidate)

See `kernels.sequences.pair_layers`. Such layers weigh a history in a Deep Interest Network; the
pass keeps the numbers of all pairs out of memory.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.abi.pair_layers import Activation
from kernels.sequences.pair_layers import PairLayer, PairLayers
from sharded_infer.errors import InternalError
from sharded_infer.towers.lowering.constants import add_call, constant_of
from sharded_infer.towers.lowering.packing import linear_of
from sharded_infer.towers.lowering.rewriting import only_user, remove_unused
from sharded_infer.towers.lowering.tensor_kinds import Kind, kinds_of
from sharded_infer.towers.program.operators import Operator

_aten = torch.ops.aten
_PLAIN: Final = {_aten.relu.default: Activation.RELU, _aten.sigmoid.default: Activation.SIGMOID}


class PairPass(torch.nn.Module):
    """The pass; see `kernels.sequences.pair_layers.PairLayers`."""

    def __init__(self, layers: PairLayers) -> None:
        super().__init__()
        for number, layer in enumerate(layers.layers):
            self.register_buffer(f"weight{number}", layer.weight, persistent=False)
        self.layers = layers

    def forward(
        self,
        positions: Tensor,
        candidates: Tensor,
        by_position: Tensor | None,
        by_candidate: Tensor | None,
    ) -> Tensor:
        """The layers' `[C, L, 1]`, by `[1, L, ...]` positions and `[C, 1, ...]` candidates."""
        if len(positions) != 1:
            raise InternalError(f"layers on pairs of {len(positions)} requests at once")
        made = self.layers(
            positions[0],
            candidates.squeeze(1),
            None if by_position is None else by_position[0],
            None if by_candidate is None else by_candidate.squeeze(1),
        )
        return made.unsqueeze(2)


def fuse_pair_layers(program: GraphModule, inputs: Sequence[Tensor], repeats: Operator) -> int:
    """Fuses such layers, in place; returns the number of passes.

    Args:
        program: runs for one request, with its products packed.
        inputs: valid inputs with several candidates and positions, for dtypes and shapes.
        repeats: the function that repeats a row of a request for its candidates.
    """
    muls = program.graph.find_nodes(op="call_function", target=_aten.mul.Tensor)
    if not any(linear_of(program, user) for mul in muls for user in mul.users):
        return 0
    kinds = kinds_of(program, inputs)
    made = sum(_fuse(program, mul, kinds, repeats) for mul in muls)
    if made:
        remove_unused(program)
    return made


def _fuse(program: GraphModule, mul: Node, kinds: Mapping[Node, Kind], repeats: Operator) -> bool:
    """Fuses the layers behind a product of positions and candidates; False if there are none."""
    if mul.kwargs or kinds[mul][0] is not torch.float32 or len(kinds[mul][1]) != 3:
        return False
    factors = _Terms(kinds, repeats, kinds[mul][1])
    if not all(map(factors.take, mul.args)) or not factors.one_of_each():
        return False
    added: _Terms | None = None
    layers: list[PairLayer] = []
    node = only_user(mul)
    while node is not None and (linear := linear_of(program, node)) is not None:
        if added is None:
            added = _Terms(kinds, repeats, kinds[node][1])
            end = node if linear.relu else added.take_sum(node)
            if end is None:
                return False
            node = end
        user = only_user(node)
        activation, slope = Activation.RELU if linear.relu else Activation.LINEAR, None
        if len(linear.weight) == 1 and layers:
            layers.append(PairLayer(linear.weight, linear.bias, activation))
            _replace(program, node, layers, factors, added)
            return True
        if not linear.relu and user is not None:
            activation, slope = _activation(program, user, len(linear.weight))
            if activation is not Activation.LINEAR:
                user = only_user(user)
        if user is not None and user.target is _aten.dropout.default:
            user = only_user(user)
        layers.append(PairLayer(linear.weight, linear.bias, activation, slope))
        node = user
    return False


class _Terms:
    """Terms by position, `[1, L, N]`, or by candidate, `[C, 1, N]`, of a sum of `shape`."""

    def __init__(self, kinds: Mapping[Node, Kind], repeats: Operator, shape: torch.Size) -> None:
        self._kinds, self._repeats, self._shape = kinds, repeats, shape
        self.by_position: list[Node] = []
        self.by_candidate: list[Node] = []

    def take(self, node: object) -> bool:
        """Takes a value, or the terms of a sum; False if it is by pair."""
        if not isinstance(node, Node) or self._kinds.get(node, (None,))[0] is not torch.float32:
            return False
        if node.target is _aten.expand.default:
            return self.take(node.args[0])
        count, length, width = self._shape
        if node.target is self._repeats:
            source = node.args[0]
            fits = isinstance(source, Node) and self._kinds[source][1] == (1, length, width)
            if fits:
                self.by_position.append(source)  # type: ignore[arg-type]
            return fits
        if self._kinds[node][1] == (count, 1, width):
            self.by_candidate.append(node)
            return True
        sums = node.target is _aten.add.Tensor and not node.kwargs
        return sums and all(self.take(one) for one in node.args)

    def take_sum(self, node: Node) -> Node | None:
        """Takes what is added to a value; returns the end of the sum, None if a term is by pair."""
        while (user := only_user(node)) is not None and user.target is _aten.add.Tensor:
            other = next((one for one in user.args if one is not node), None)
            if user.kwargs or not self.take(other):
                return None
            node = user
        return node

    def one_of_each(self) -> bool:
        return len(self.by_position) == len(self.by_candidate) == 1


def _activation(program: GraphModule, node: Node, width: int) -> tuple[Activation, Tensor | None]:
    """A node's elementwise activation; a linear one for other operators."""
    if node.target in _PLAIN:
        return _PLAIN[node.target], None
    slope = constant_of(program, node.args[1]) if node.target is _aten.prelu.default else None
    if slope is None:
        return Activation.LINEAR, None
    # torch's second axis is the channels': with several slopes these would be the positions.
    if slope.numel() != 1:
        return Activation.LINEAR, None
    return Activation.SLOPE, slope.detach().flatten().expand(width)


def _replace(
    program: GraphModule, last: Node, layers: Sequence[PairLayer], factors: _Terms, added: _Terms
) -> None:
    with program.graph.inserting_before(last):
        given = (
            *(factors.by_position[0], factors.by_candidate[0]),
            *(_sum(program, terms) for terms in (added.by_position, added.by_candidate)),
        )
        made = add_call(program, "_pairs", PairPass(PairLayers(layers)), given)
    last.replace_all_uses_with(made)


def _sum(program: GraphModule, nodes: Sequence[Node]) -> Node | None:
    total = nodes[0] if nodes else None
    for node in nodes[1:]:
        total = program.graph.call_function(_aten.add.Tensor, (total, node))
    return total
