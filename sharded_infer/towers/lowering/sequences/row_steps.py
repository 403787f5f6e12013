"""Steps on rows by one pass, in towers over sequences.

    steps = before + linear(mixed, V, c)
    projected = linear(layer_norm(steps), W, b)     ->  steps, projected = pass(before, mixed)

See `kernels.sequences.row_steps`. A pass has all steps that can run at once; steps that need
another operator's result, such as an attention's on this pass, are for a later pass.
"""

import operator
from collections.abc import Iterable, Sequence, Set
from typing import Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.passes.tools_common import stable_topological_sort

from kernels.abi.row_steps import StepKind
from kernels.sequences.row_step import Columns, RowStep, Source
from kernels.sequences.row_steps import RowSteps
from sharded_infer.towers.lowering.constants import add_call
from sharded_infer.towers.lowering.rewriting import remove_unused
from sharded_infer.towers.lowering.sequences.row_operators import (
    RowColumns,
    RowOperator,
    RowOperators,
)
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

_WORTH: Final = (StepKind.LINEAR, StepKind.NORM)
# Numbers of a weight: larger ones leave no room in the cache for intermediate rows.
_MOST_NUMBERS: Final = 2**17


class RowPass(torch.nn.Module):
    """The pass; see `kernels.sequences.row_steps.RowSteps`."""

    def __init__(self, steps: RowSteps) -> None:
        super().__init__()
        # Buffers, so that the program's weights are counted.
        for number, constant in enumerate(steps.constants):
            self.register_buffer(f"constant{number}", constant, persistent=False)
        self.steps = steps

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs the steps; shapes and dtypes as in `RowSteps`."""
        return self.steps(*inputs)


def fuse_row_steps(
    program: GraphModule, inputs: Iterable[Sequence[Tensor]], *, fewest: int = 2
) -> int:
    """Fuses steps on rows, in place; returns the number of passes.

    Args:
        program: of aten operators and passes, with its products packed.
        inputs: valid inputs of several sizes, for dtypes and shapes.
        fewest: operators of a pass; with 1, a product or a norm alone is one, to be joined.
    """
    rows = RowOperators(program, [kinds_of(program, one) for one in inputs])
    groups = _groups(program, rows, fewest)
    fused = _Fused(program, rows)
    for group in groups:
        fused.replace(group)
    if groups:
        stable_topological_sort(program)
        remove_unused(program)
    return len(groups)


def _groups(program: GraphModule, rows: RowOperators, fewest: int) -> list[list[Node]]:
    """Steps that can run in one pass and are worth one, in the graph's order."""
    steps = {
        node: found
        for node, found in rows.found.items()
        if found.weight is None or found.weight.numel() <= _MOST_NUMBERS
    }
    # Number of passes before a node, each of which waits for the one before.
    level: dict[Node, int] = {}
    groups: dict[tuple[int, tuple[torch.Size, ...]], list[Node]] = {}
    for node in program.graph.nodes:
        if node not in steps:
            sources = node.all_input_nodes
            level[node] = max((level[one] + (one in steps) for one in sources), default=0)
            continue
        read = [one.node for one in steps[node].sources if isinstance(one, RowColumns)]
        level[node] = max((level[one] for one in read), default=0)
        groups.setdefault((level[node], rows.rows(node)), []).append(node)
    return [
        group
        for group in groups.values()
        if len(group) >= fewest and any(steps[node].kind in _WORTH for node in group)
    ]


class _Fused:
    def __init__(self, program: GraphModule, rows: RowOperators) -> None:
        self._program, self._rows = program, rows
        self._results: dict[Node, Node] = {}

    def replace(self, group: Sequence[Node]) -> None:
        members = set(group)
        found = [self._rows.found[node] for node in group]
        read = [one.node for step in found for one in step.sources if isinstance(one, RowColumns)]
        inputs = list(dict.fromkeys(node for node in read if node not in members))
        values = {node: number for number, node in enumerate(inputs)}
        steps: list[RowStep] = []
        for node, one in zip(group, found, strict=True):
            steps += _steps(one, values, len(inputs) + len(steps))
            values[node] = len(inputs) + len(steps) - 1
        wanted = [node for node in group if self._is_read(node, members)]
        widths = [self._rows.columns(node).width for node in inputs]  # type: ignore[union-attr]
        made = RowSteps(widths, steps, [values[node] - len(inputs) for node in wanted])
        graph = self._program.graph
        with graph.inserting_before(group[-1]):
            given = tuple(self._results.get(node, node) for node in inputs)
            results = add_call(self._program, "_rows", RowPass(made), given)
            for number, node in enumerate(wanted):
                self._results[node] = graph.call_function(operator.getitem, (results, number))
        for node in wanted:
            node.replace_all_uses_with(self._results[node])

    def _is_read(self, node: Node, members: Set[Node]) -> bool:
        return any(
            user not in members
            and not (user in self._rows.views and not self._is_read(user, members))
            for user in node.users
        )


def _steps(one: RowOperator, values: dict[Node, int], value: int) -> list[RowStep]:
    """An operator as steps; `value` is the first one's result."""
    sources = tuple(
        Columns(values[source.node], source.first, source.width)
        if isinstance(source, RowColumns)
        else source
        for source in one.sources
    )
    if one.kind is StepKind.JOINED:
        return _joined(sources, value)
    step = RowStep(one.kind, sources, one.weight, one.bias, one.epsilon)
    if not one.relu:
        return [step]
    return [step, RowStep(StepKind.RELU, (Columns(value, 0, step.width),))]


def _joined(sources: Sequence[Source], value: int) -> list[RowStep]:
    """Any number of sources as steps that join two each."""
    whole, *others = sources
    steps: list[RowStep] = []
    for other in others:
        steps.append(RowStep(StepKind.JOINED, (whole, other)))
        whole = Columns(value + len(steps) - 1, 0, steps[-1].width)
    return steps
