"""Splits a program: what depends on the request's inputs alone, and what each pair computes.

for each node of the program:
    all its values are by request            -> the graph by request
    a rule knows how it acts on parts        -> both graphs
    otherwise                                -> the graph by pair, on values with a row a pair
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.compiled_products import CompiledProduct, join_crosses
from sharded_infer.towers.lowering.fused_steps import Step, fuse_steps
from sharded_infer.towers.lowering.tensor_kinds import kinds_of
from sharded_infer.towers.split.parts import Anywhere, Known, Parts, Run, Value, joined_runs
from sharded_infer.towers.split.product_rules import (
    PRODUCT_RULES,
    split_product,
    split_step,
    weight_size,
)
from sharded_infer.towers.split.shape_rules import SHAPE_RULES
from sharded_infer.towers.split.split_graphs import SplitGraphs, counts_samples

__all__ = ["SplitProgram", "split_program"]

# Runs that tell which axis is the samples'; towers are run at these sizes anyway.
_SEVERAL = 4
_RULES = {**SHAPE_RULES, **PRODUCT_RULES}


@dataclass(frozen=True, slots=True)
class SplitProgram:
    """A program in two.

    Attributes:
        request: takes the embeddings by request, fp32 `[R, width]`.
        pair: takes the dense inputs and the embeddings by pair, fp32 `[B, width]`, each pair's
            request, int64 `[B]`, and what `request` returned.
        saved_products: multiplications that a pair does not do.
        more_operators: operators that both have more than the whole program.
    """

    request: GraphModule
    pair: GraphModule
    saved_products: int
    more_operators: int


def split_program(
    program: GraphModule, widths: Sequence[int], runs: Sequence[Run]
) -> SplitProgram | None:
    """Splits a packed program.

    Args:
        program: takes its inputs by position, the embeddings last; not changed.
        widths: of its inputs.
        runs: which columns of the embeddings are by request.

    Returns:
        None if no product would be saved.
    """
    runs = joined_runs(runs)
    if not any(by_request for by_request, _ in runs):
        return None
    zeros = [torch.zeros(_SEVERAL, width) for width in widths]
    kinds, kinds_of_one = (kinds_of(program, [z[:n] for z in zeros]) for n in (_SEVERAL, 1))
    graphs = SplitGraphs(program, kinds, kinds_of_one)
    outputs = _walk(graphs, runs)
    if not graphs.saved_products:
        return None
    request, pair = graphs.build(outputs)
    shared = sum(size for by_request, size in runs if by_request)
    given: tuple[Tensor, ...]
    with torch.inference_mode():
        given = request(torch.zeros(1, shared))
    own = torch.zeros(_SEVERAL, widths[-1] - shared)
    fuse_steps(pair, [*zeros[:-1], own, torch.zeros(_SEVERAL, dtype=torch.int64), *given])
    join_crosses(pair)
    more = sum(map(_operators, (request, pair))) - _operators(program)
    return SplitProgram(request, pair, graphs.saved_products, more)


def _operators(program: GraphModule) -> int:
    calls = (node for node in program.graph.nodes if node.op.startswith("call"))
    return sum(node.target is not operator.getitem for node in calls)


def _walk(graphs: SplitGraphs, runs: Sequence[Run]) -> list[Node]:
    """Puts every node into the graphs; returns the outputs."""
    nodes = list(graphs.program.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    for number, node in enumerate(inputs[:-1]):
        graphs.known[node] = Value(False, graphs.add_input(False, f"dense{number}"))
    shared = graphs.add_input(True, "shared", counts=True)
    own = graphs.add_input(False, "own")
    graphs.add_input(False, "owners", counts=True)
    parts = Parts(1, shared, own, tuple(runs))
    graphs.known[inputs[-1]] = parts if len(runs) > 1 else Value(True, shared)
    for node in nodes:
        if node.op == "output":
            return [graphs.at(False, output) for output in node.args[0]]
        if node.op != "placeholder":
            graphs.known[node] = _known(graphs, node)
    return []


def _known(graphs: SplitGraphs, node: Node) -> Known:
    sources = node.all_input_nodes
    if all(isinstance(graphs.known[source], Anywhere) for source in sources):
        return Anywhere()
    if counts_samples(node) and graphs.shape(sources[0]) is not None:
        return Anywhere()
    found = _by_rule(graphs, node)
    if found is not None:
        return found
    by_request = all(
        isinstance(known := graphs.known[source], Anywhere)
        or (isinstance(known, Value) and known.by_request)
        for source in sources
    )
    if by_request:
        graphs.saved_products += weight_size(graphs, node)
    return Value(by_request, graphs.copy(by_request, node))


def _by_rule(graphs: SplitGraphs, node: Node) -> Known | None:
    if node.op == "call_module":
        module = graphs.program.get_submodule(str(node.target))
        if isinstance(module, CompiledProduct):
            return split_product(graphs, node, module.product)
        return split_step(graphs, node, module) if isinstance(module, Step) else None
    rule = _RULES.get(node.target)  # type: ignore[arg-type]
    return None if rule is None else rule(graphs, node)
