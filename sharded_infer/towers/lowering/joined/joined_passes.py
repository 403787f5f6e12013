"""Adjacent passes of a user's stage in one call, with only views between them.

    steps, heads = rows(history)
    mixed = attention(heads)
    last = rows(mixed[:, -1:], steps[:, -1:])       ->  last = passes(history)

See `kernels.sequences.passes`. Other operators that mix rows run in torch, between two such calls.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.passes.tools_common import stable_topological_sort

from kernels.abi.passes import LAST_ROW, POSITIONS
from kernels.sequences.passes import (
    AnyPass,
    Attending,
    Memory,
    Operand,
    PairBiasing,
    Passes,
    RowStepping,
    StateColumns,
)
from kernels.sequences.user_states import Prefixes
from sharded_infer.errors import InternalError
from sharded_infer.towers.lowering.constants import add_call, constant_of
from sharded_infer.towers.lowering.joined.pass_groups import PassGroups
from sharded_infer.towers.lowering.joined.position_states import NotCausalError, position_states
from sharded_infer.towers.lowering.rewriting import DIVISIONS, module_of, remove_unused
from sharded_infer.towers.lowering.sequences.attention import HeadsPass
from sharded_infer.towers.lowering.sequences.row_steps import RowPass
from sharded_infer.towers.lowering.sequences.views import Source, Views

_FEWEST: Final = 2  # passes of a call


class JoinedPasses(torch.nn.Module):
    """The passes; see `kernels.sequences.passes.Passes`.

    Attributes:
        states: of positions; empty if a position depends on later ones.
        not_causal: how it does; empty if none does.

    Args:
        counts: the input and its axis that have all positions; None: there is one.
        shapes: of the results; None stands for the number of positions.
        weights: of the passes, for a count of the program's memory.
    """

    def __init__(
        self,
        inputs: Sequence[Memory],
        outputs: Sequence[Memory],
        passes: Sequence[AnyPass],
        counts: tuple[int, int] | None,
        shapes: Sequence[tuple[int | None, ...]],
        weights: Iterable[Tensor],
    ) -> None:
        super().__init__()
        for number, weight in enumerate(weights):
            self.register_buffer(f"weight{number}", weight, persistent=False)
        self.inputs, self.outputs, self.members = inputs, outputs, passes
        self.counts, self._shapes = counts, tuple(shapes)
        self.states: Sequence[StateColumns] = ()
        self.not_causal = ""
        try:
            self.states = position_states(inputs, outputs, passes)
        except NotCausalError as error:
            self.not_causal = str(error)
        self.passes = Passes(inputs, outputs, passes, states=self.states)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs the passes on fp32 inputs; raises InputError if their sizes disagree."""
        made = self.behind(inputs, None)
        if made is None:
            raise InternalError("passes without blocks read none")
        return made

    def behind(
        self, inputs: Sequence[Tensor], prefix: Prefixes | None
    ) -> tuple[Tensor, ...] | None:
        """Runs the passes on the positions behind a prefix; None if it is no longer kept."""
        known = 0 if prefix is None else int(prefix.positions[0])
        positions = self.positions(inputs) + known
        made = tuple(
            [
                torch.empty([positions if size is None else size for size in shape])
                for shape in self._shapes
            ]
        )
        read = [one.contiguous() for one in inputs]
        return made if self.passes(np.array([positions]), read, made, prefixes=prefix) else None

    def positions(self, inputs: Sequence[Tensor]) -> int:
        """Number of positions of the inputs."""
        return 1 if self.counts is None else inputs[self.counts[0]].shape[self.counts[1]]


def join_passes(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Joins passes that can run in one call, in place; returns the number of calls.

    `program` runs for one request, with its passes fused; `inputs` have two lengths, which no two
    sequences share.
    """
    groups = PassGroups(program, Views(program, inputs))
    found = [passes for passes in groups.found if len(passes) >= _FEWEST]
    for passes in found:
        _replace(program, _Call(program, groups, passes))
    if found:
        stable_topological_sort(program)
        remove_unused(program)
    return len(found)


def _replace(program: GraphModule, made: "_Call") -> None:
    graph = program.graph
    with graph.inserting_before(made.nodes[-1]):
        call = add_call(program, "_passes", made.module(), tuple(made.inputs))
        results = [
            graph.call_function(operator.getitem, (call, number))
            for number in range(len(made.outputs))
        ]
    for node, result in zip(made.outputs, results, strict=True):
        node.replace_all_uses_with(result)


class _Call:
    """The passes of one call, its memories, and the nodes it reads and writes for others."""

    def __init__(self, program: GraphModule, groups: PassGroups, nodes: Sequence[Node]) -> None:
        self._program, self._groups, self.nodes = program, groups, nodes
        self._members = set(nodes)
        bases = dict.fromkeys(one.base for node in nodes for one in groups.reads[node])
        held = {base: constant_of(program, base) for base in bases}
        self._constants = {base: one for base, one in held.items() if one is not None}
        self.inputs = [one for one in bases if one not in self._constants and not self._is_own(one)]
        results = [result for node in nodes for result in self._results(node)]
        self.outputs = [one for one in results if self._is_read(one)]
        self._memories = {
            node: Memory(one.shape[-2], one.shape[-1], one) for node, one in self._constants.items()
        }
        self._memories |= {one: groups.layout(one).memory for one in (*self.inputs, *results)}

    def module(self) -> JoinedPasses:
        inputs, outputs = (
            [self._memories[one] for one in of] for of in (self.inputs, self.outputs)
        )
        passes = [self._pass(node) for node in self.nodes]
        shape = self._groups.views.shape
        of_inputs = enumerate(map(shape, self.inputs))
        counts = ((at, one.index(None)) for at, one in of_inputs if None in one)
        weights = [
            weight
            for one in passes
            if isinstance(one, RowStepping)
            for weight in one.steps.constants
        ]
        weights += self._constants.values()
        shapes = list(map(shape, self.outputs))
        return JoinedPasses(inputs, outputs, passes, next(counts, None), shapes, weights)

    def _is_own(self, base: Node) -> bool:
        return self._groups.owners.get(base) in self._members

    def _results(self, node: Node) -> list[Node]:
        return list(node.users) if module_of(self._program, node, RowPass) else [node]

    def _is_read(self, node: Node) -> bool:
        return any(
            user not in self._members and not (self._is_view(user) and not self._is_read(user))
            for user in node.users
        )

    def _is_view(self, node: Node) -> bool:
        base = self._groups.views.source(node).base
        return (base is not node and self._is_own(base)) or node.target in DIVISIONS

    def _operand(self, source: Source) -> Operand:
        return Operand(self._memories[source.base], source.column, source.row)

    def _pass(self, node: Node) -> AnyPass:
        read = list(map(self._operand, self._groups.reads[node]))
        steps = module_of(self._program, node, RowPass)
        heads = module_of(self._program, node, HeadsPass)
        rows = 1 if self._groups.has_one_row(node) else POSITIONS
        if steps is not None:
            taken = {user.args[1]: user for user in node.users}
            widths = enumerate(steps.steps.output_widths)
            results = [self._result(taken.get(at), width, rows) for at, width in widths]
            return RowStepping(steps.steps, [*read, *results], rows)
        out = Operand(self._memories[node])
        if heads is not None:
            firsts, (width, _, value_width) = zip(*heads.columns, strict=True)
            of_heads = [
                one._replace(column=one.column + first)
                for one, first in zip(read[:3], firsts, strict=True)
            ]
            operands = [*of_heads, out, *read[3:]]
            attention = heads.attention
            return Attending(attention, heads.heads, width, value_width, operands, rows)
        found = self._groups.pairs[node]
        operands = [read[0], out, *read[1:]]
        return PairBiasing(found.function, operands, found.turned, self._only_earlier(node))

    def _result(self, node: Node | None, width: int, rows: int) -> Operand:
        return Operand(Memory(rows, width) if node is None else self._memories[node])

    def _only_earlier(self, node: Node) -> bool:
        if node in self.outputs:
            return False
        readers = [
            module_of(self._program, user, HeadsPass)
            for user in self.nodes
            for one in self._groups.reads[user]
            if one.base is node and one.row != LAST_ROW
        ]
        return all(one is not None and one.attention.causal for one in readers)
