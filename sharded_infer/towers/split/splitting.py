"""Split of a program into a graph per request and a graph per pair.

for each node of the program:
    all its values are by request            -> the graph by request
    a rule knows how it acts on parts        -> both graphs
    otherwise                                -> the graph by pair, on values with a row a pair
"""

import operator
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.canonical_forms import keep_columns
from sharded_infer.towers.lowering.compiled_products import CompiledProduct, join_crosses
from sharded_infer.towers.lowering.fused_steps import Step, fuse_steps
from sharded_infer.towers.lowering.joined.growing_stage import GrowingStage, growing_stage
from sharded_infer.towers.lowering.joined.joined_stages import JoinedStages, join_stages
from sharded_infer.towers.lowering.joined.position_states import NotCausalError
from sharded_infer.towers.lowering.rewriting import module_of
from sharded_infer.towers.lowering.sequences.attention import fuse_attention
from sharded_infer.towers.lowering.sequences.pair_layers import fuse_pair_layers
from sharded_infer.towers.lowering.sequences.row_steps import fuse_row_steps
from sharded_infer.towers.lowering.sequences.views import Views
from sharded_infer.towers.lowering.tensor_kinds import kinds_of
from sharded_infer.towers.program.tower_inputs import TowerInputs
from sharded_infer.towers.split.parts import Invariant, Known, Parts, Run, Value, joined_runs
from sharded_infer.towers.split.product_rules import (
    PRODUCT_RULES,
    split_product,
    split_step,
    weight_size,
)
from sharded_infer.towers.split.shape_rules import SHAPE_RULES
from sharded_infer.towers.split.shared_products import SHARED_PRODUCT_RULES
from sharded_infer.towers.split.sizes import Sizes
from sharded_infer.towers.split.split_graphs import SplitGraphs, counts_samples, rows_of_pairs
from sharded_infer.towers.split.user_program import UserInputs, fuse_user

_aten = torch.ops.aten
_RULES = {**SHAPE_RULES, **PRODUCT_RULES}
# Of operators, with the same arguments.
_FUNCTIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    **{
        getattr(getattr(_aten, name), kind): getattr(torch, name)
        for kind, names in {
            "Tensor": ("add", "sub", "mul", "div", "ge", "gt", "le", "lt", "eq", "ne"),
            "Scalar": ("ge", "gt", "le", "lt", "eq", "ne", "masked_fill"),
            "default": (
                *("sigmoid", "relu", "tanh", "exp", "log", "sqrt", "abs", "neg", "floor"),
                *("layer_norm", "matmul", "bmm", "cat", "chunk", "clamp", "index_select"),
                *("embedding", "gather", "reshape", "unsqueeze"),
            ),
            "dim": ("squeeze",),
            "int": ("softmax", "transpose"),
            "dim_IntList": ("sum",),
            "using_ints": ("flatten",),
            "self": ("where",),
        }.items()
        for name in names
    },
    _aten.silu.default: torch.nn.functional.silu,
    _aten.mean.dim: torch.mean,
}


@dataclass(frozen=True, slots=True, eq=False)
class SplitProgram:
    """A program in two.

    Attributes:
        request: takes the inputs by request, then the embeddings by request, fp32 `[R, width]`.
        whole: the same for one request whose sequences have no padding; None if it is no other.
        together: `whole` and `pair` in one call; None if they take more.
        growing: `whole` for the positions behind a known beginning, or why there is none.
        pair: takes the inputs and the embeddings by pair, fp32 `[B, width]`, each pair's request,
            int64 `[B]`, and the results of `request`.
        runs: columns of the embeddings by request and by pair.
        saved_products: multiplications that a pair does not do.
        takes_one: True if `pair` takes values of one request, not a row of each.
        more_operators: operators that both have more than the whole program.
    """

    request: GraphModule
    whole: GraphModule | None
    together: JoinedStages | None
    growing: GrowingStage | str
    pair: GraphModule
    runs: tuple[Run, ...]
    saved_products: int
    takes_one: bool
    more_operators: int

    def __del__(self) -> None:
        # As in `Tower`: a graph's references would stay until a full collection.
        for graph in (self.request, self.whole, self.pair):
            if graph is not None:
                vars(graph).clear()


def split_program(
    program: GraphModule,
    inputs: TowerInputs,
    runs: Sequence[Run],
    by_request: Container[str] | None = None,
) -> SplitProgram | None:
    """Splits a packed program, unchanged itself; None if no product would be saved.

    Args:
        program: takes `inputs` by position.
        runs: columns of the embeddings by request and by pair.
        by_request: names of inputs that are, too. The graph by request is then run for one request
            at a time, and made even if it saves no products.
    """
    runs = joined_runs(runs)
    alone = by_request is not None
    if not alone and not any(flag for flag, _ in runs):
        return None
    graphs = SplitGraphs(program, Sizes(program, inputs), alone=alone)
    shared = [name in (by_request or ()) for name in inputs.names[:-1]]
    outputs = _walk(graphs, runs, shared)
    if not alone and not graphs.saved_products:
        return None
    request, pair = graphs.build(outputs)
    width = sum(size for flag, size in runs if flag)
    users = UserInputs(inputs, shared, width)
    whole = _fuse(request, pair, users, alone=alone)
    together = None
    growing: GrowingStage | str = "its stages run for many requests"
    if alone:
        stage = whole or request
        views = Views(stage, users.runs())
        together = join_stages(stage, pair, rows_of_pairs, views)
        try:
            growing = growing_stage(stage, views, users.by_position())
        except NotCausalError as error:
            growing = str(error)
        for graph in (request, whole, pair):
            if graph is not None:
                _call_functions(graph)
    more = sum(map(_operators, (request, pair))) - _operators(program)
    saved, takes_one = graphs.saved_products, graphs.takes_one
    return SplitProgram(request, whole, together, growing, pair, runs, saved, takes_one, more)


def _fuse(
    request: GraphModule, pair: GraphModule, users: UserInputs, *, alone: bool
) -> GraphModule | None:
    """Fuses both graphs in place; returns the first for requests without padding."""
    pairs = users.pairs(request)
    whole = None
    if alone:
        unpadded = GraphModule(request, deepcopy(request.graph))
        whole = unpadded if fuse_user(unpadded, users, users.whole()) else None
        fuse_user(request, users)
        fuse_attention(pair)
        fuse_pair_layers(pair, pairs[0], rows_of_pairs)
    fuse_steps(pair, pairs[0])
    join_crosses(pair)
    if alone:
        keep_columns(pair, kinds_of(pair, pairs[0]))
        fuse_row_steps(pair, pairs)
    return whole


def _call_functions(program: GraphModule) -> None:
    """Replaces modules and operators by functions with less overhead per call, in place.

    `torch.ops` takes one to two of a small operator's few microseconds for its look-up, and a
    module as long for its hooks. The program keeps the modules, which hold its weights.
    """
    for node in program.graph.nodes:
        if node.op == "call_module":
            node.op, node.target = "call_function", program.get_submodule(str(node.target)).forward
        elif node.op != "call_function" or node.kwargs:
            continue
        elif node.target is _aten.slice.Tensor and node.args[2:] == (-1, sys.maxsize):
            node.target, node.args = torch.narrow, (*node.args[:2], -1, 1)
        else:
            node.target = _FUNCTIONS.get(node.target, node.target)
    program.recompile()


def _operators(program: GraphModule) -> int:
    calls = (node for node in program.graph.nodes if node.op.startswith("call"))
    return sum(node.target is not operator.getitem for node in calls)


def _walk(graphs: SplitGraphs, runs: Sequence[Run], by_request: Sequence[bool]) -> list[Node]:
    nodes = list(graphs.program.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    for number, (node, flag) in enumerate(zip(inputs[:-1], by_request, strict=True)):
        graphs.known[node] = Value(flag, graphs.add_input(flag, f"dense{number}"))
    shared = graphs.add_input(True, "shared", counts=True)
    own = graphs.add_input(False, "own")
    graphs.add_input(False, "owners", counts=True)
    flags = {flag for flag, _ in runs}
    graphs.known[inputs[-1]] = (
        Parts(1, shared, own, tuple(runs))
        if len(flags) > 1
        else Value(True in flags, shared if True in flags else own)
    )
    for node in nodes:
        if node.op == "output":
            return [graphs.at(False, output) for output in node.args[0]]
        if node.op != "placeholder":
            graphs.known[node] = _known(graphs, node)
    return []


def _known(graphs: SplitGraphs, node: Node) -> Known:
    sources = node.all_input_nodes
    if all(isinstance(graphs.known[source], Invariant) for source in sources):
        return Invariant()
    if counts_samples(node) and graphs.sizes.shape(sources[0]) is not None:
        return Invariant()
    found = _by_rule(graphs, node)
    if found is not None:
        return found
    by_request = all(
        isinstance(known := graphs.known[source], Invariant)
        or (isinstance(known, Value) and known.by_request)
        for source in sources
    )
    if by_request:
        graphs.saved_products += weight_size(graphs, node)
    return Value(by_request, graphs.copy(by_request, node))


def _by_rule(graphs: SplitGraphs, node: Node) -> Known | None:
    product = module_of(graphs.program, node, CompiledProduct)
    if product is not None:
        return split_product(graphs, node, product.product)
    step = module_of(graphs.program, node, Step)
    if step is not None:
        return split_step(graphs, node, step)
    found = SHARED_PRODUCT_RULES.get(node.target) if graphs.alone else None  # type: ignore[arg-type]
    if found is not None and (known := found(graphs, node)) is not None:
        return known
    rule = _RULES.get(node.target)  # type: ignore[arg-type]
    return None if rule is None else rule(graphs, node)
