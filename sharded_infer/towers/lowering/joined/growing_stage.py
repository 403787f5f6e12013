"""A user's stage that computes the positions behind a known beginning of the history alone."""

import operator
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.abi.passes import POSITIONS
from kernels.sequences.user_states import Prefixes
from sharded_infer.towers.lowering.joined.joined_passes import JoinedPasses
from sharded_infer.towers.lowering.joined.joined_stages import result_of
from sharded_infer.towers.lowering.joined.position_states import NotCausalError
from sharded_infer.towers.lowering.rewriting import module_of
from sharded_infer.towers.lowering.sequences.views import Views


class GrowingStage(NamedTuple):
    """The stage as one call; thread-safe.

    Attributes:
        given: which inputs of the stage the passes take.
        by_position: those of them that have a row for each position.
        results: for each result of the stage, the result of the passes and its shape, where None
            stands for the number of positions; or the input that it is, and None.
    """

    passes: JoinedPasses
    given: tuple[int, ...]
    by_position: frozenset[int]
    results: tuple[tuple[int, tuple[int | None, ...] | None], ...]

    def __call__(self, inputs: Sequence[Tensor], prefix: Prefixes) -> tuple[Tensor, ...] | None:
        """As the stage on the whole history; None if the prefix is no longer kept.

        `inputs` have the positions behind the prefix, at least one, without padding.
        """
        read = [inputs[at] for at in self.given]
        positions = self.passes.positions(read) + int(prefix.positions[0])
        made = self.passes.behind(read, prefix)
        if made is None:
            return None
        return tuple(
            inputs[at]
            if shape is None
            else made[at].view([positions if size is None else size for size in shape])
            for at, shape in self.results
        )


def growing_stage(stage: GraphModule, views: Views, sequences: Sequence[bool]) -> GrowingStage:
    """The growing form of a user's stage for requests without padding.

    Args:
        stage: with its passes joined.
        views: of `stage`.
        sequences: which of its inputs are those of a sequence that grows.

    Raises:
        NotCausalError: a position depends on later ones, or an operator is in no compiled pass.
    """
    call = _only_call(stage, views)
    module = module_of(stage, call, JoinedPasses)
    if module is None or module.not_causal:
        raise NotCausalError("no compiled pass" if module is None else module.not_causal)
    inputs = [node for node in stage.graph.nodes if node.op == "placeholder"]
    given = []
    for node, memory in zip(call.all_input_nodes, module.inputs, strict=True):
        base = views.whole(node)
        at = inputs.index(base) if base in inputs else -1
        if at < 0 or sequences[at] != (memory.rows == POSITIONS):
            raise NotCausalError(f"{_described(stage, base)} is read beside the rows of a sequence")
        given.append(at)
    results: list[tuple[int, tuple[int | None, ...] | None]] = []
    [output] = stage.graph.find_nodes(op="output")
    for node in output.args[0]:
        if node in inputs and not sequences[inputs.index(node)]:
            results.append((inputs.index(node), None))
            continue
        number = result_of(views.whole(node), call)
        if number is None:
            raise NotCausalError(f"{_described(stage, node)} is no result of the compiled passes")
        results.append((number, views.shape(node)))
    by_position = frozenset(at for at in given if sequences[at])
    if not by_position:
        raise NotCausalError("its passes read no sequence")
    return GrowingStage(module, tuple(given), by_position, tuple(results))


def _only_call(stage: GraphModule, views: Views) -> Node:
    calls = [
        node
        for node in stage.graph.nodes
        if node.op.startswith("call")
        and views.whole(node) is node
        and node.target is not operator.getitem
    ]
    # An operator of torch says more than a compiled pass beside it.
    for node in sorted(calls, key=lambda node: bool(node.op == "call_module")):
        if module_of(stage, node, JoinedPasses) is None:
            raise NotCausalError(f"{_described(stage, node)} is in no compiled pass")
    if len(calls) != 1:
        raise NotCausalError(f"expected one call of compiled passes, got {len(calls)}")
    return calls[0]


def _described(stage: GraphModule, node: Node) -> str:
    target = stage.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    name = type(target).__name__ if node.op == "call_module" else str(target)
    return f"{node.name} = {name}({', '.join(map(str, node.args))})"
