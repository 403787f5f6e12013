"""Layers on each pair of a candidate and one request's positions, by one pass.

    y = linear(rows * candidate, W, b) + by_position + by_candidate
    y = prelu(y), relu(y) or sigmoid(y)
    y = linear(y, V, c), of one output
        ->  y = pair_layers(rows, candidate, by_position, by_candidate)

See `kernels.sequences.pair_layers`. Such layers weigh a history in a Deep Interest Network; the
pass keeps the numbers of all pairs out of memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.sequences.pair_layers import Activation, PairLayer, PairLayers
from sharded_infer.errors import InternalError
from sharded_infer.towers.lowering.constants import add_call, constant_of
from sharded_infer.towers.lowering.packing import Linear, linear_of
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
        """Runs the layers: fp32 `[C, L, 1]`.

        Args:
            positions: fp32 `[1, L, K]`.
            candidates: fp32 `[C, 1, K]`.
            by_position: fp32 `[1, L, N]`.
            by_candidate: fp32 `[C, 1, N]`.
        """
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
    made = 0
    for mul in muls:
        found = _Pairs.of(program, mul, kinds, repeats)
        if found is not None:
            found.replace(program)
            made += 1
    if made:
        remove_unused(program)
    return made


@dataclass(slots=True, eq=False)
class _Pairs:
    positions: Node
    candidates: Node
    by_position: list[Node] = field(default_factory=list)
    by_candidate: list[Node] = field(default_factory=list)
    layers: list[PairLayer] = field(default_factory=list)
    last: Node | None = None

    @classmethod
    def of(
        cls, program: GraphModule, mul: Node, kinds: Mapping[Node, Kind], repeats: Operator
    ) -> "_Pairs | None":
        """The layers behind a product of positions and candidates; None if there are none."""
        if mul.kwargs or kinds[mul][0] is not torch.float32 or len(kinds[mul][1]) != 3:
            return None
        terms = _Terms(kinds, repeats, kinds[mul][1])
        if not all(terms.take(one) for one in mul.args) or not terms.one_of_each():
            return None
        found = cls(terms.by_position[0], terms.by_candidate[0])
        node = only_user(mul)
        while node is not None:
            linear = linear_of(program, node)
            if linear is None:
                return None
            node = found._take_layer(program, node, linear, kinds, repeats)
            if found.last is not None:
                return found
        return None

    def _take_layer(
        self,
        program: GraphModule,
        node: Node,
        linear: Linear,
        kinds: Mapping[Node, Kind],
        repeats: Operator,
    ) -> Node | None:
        """Takes a product and its activation; returns the next node, None at the end."""
        user = only_user(node)
        if not self.layers and not linear.relu:
            terms = _Terms(kinds, repeats, kinds[node][1])
            while user is not None and user.target is _aten.add.Tensor and not user.kwargs:
                other = next((one for one in user.args if one is not node), None)
                if not terms.take(other):
                    return None
                node, user = user, only_user(user)
            self.by_position, self.by_candidate = terms.by_position, terms.by_candidate
        if len(linear.weight) == 1 and self.layers:
            self.layers.append(PairLayer(linear.weight, linear.bias, _relu_of(linear)))
            self.last = node
            return None
        activation, slope = _relu_of(linear), None
        if not linear.relu and user is not None:
            activation, slope = _activation(program, user, len(linear.weight))
            if activation is not Activation.LINEAR:
                user = only_user(user)
        if user is not None and user.target is _aten.dropout.default:
            user = only_user(user)
        self.layers.append(PairLayer(linear.weight, linear.bias, activation, slope))
        return user

    def replace(self, program: GraphModule) -> None:
        if self.last is None:
            raise InternalError("layers on pairs without an end")
        with program.graph.inserting_before(self.last):
            added = [_sum(program, terms) for terms in (self.by_position, self.by_candidate)]
            layers = PairPass(PairLayers(self.layers))
            given = (self.positions, self.candidates, *added)
            made = add_call(program, "_pairs", layers, given)
        self.last.replace_all_uses_with(made)


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


def _relu_of(linear: Linear) -> Activation:
    return Activation.RELU if linear.relu else Activation.LINEAR


def _sum(program: GraphModule, nodes: Sequence[Node]) -> Node | None:
    total: Node | None = None
    for node in nodes:
        if total is None:
            total = node
        else:
            total = program.graph.call_function(_aten.add.Tensor, (total, node))
    return total
