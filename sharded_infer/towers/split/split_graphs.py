"""The two graphs that a program is split into: by request, then by pair.

A value by request that a pair reads is an output of the first graph and an input of the second,
where each pair takes the row of its request.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from sharded_infer.towers.lowering.constants import give_up_unused
from sharded_infer.towers.lowering.tensor_kinds import Kind
from sharded_infer.towers.split.parts import Known, Parts, Value

__all__ = ["SplitGraphs", "counts_samples", "rows_of_pairs"]

_aten = torch.ops.aten
# They read a row that is repeated as well as its copies.
_READ_REPEATED: Final = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.cat.default),
    *(_aten.sum.dim_IntList, _aten.matmul.default),
)


def rows_of_pairs(values: Tensor, owners: Tensor) -> Tensor:
    """Each pair's row of a value by request.

    Args:
        values: `[R, ...]`.
        owners: int64 `[B]`, each pair's request.

    Returns:
        `[B, ...]`; of one request a view that repeats its row, without a copy.
    """
    if len(values) == 1:
        return values.expand(len(owners), *values.shape[1:])
    return values.index_select(0, owners)


class SplitGraphs:
    """The graphs while they are made, and what is known of the program's values.

    Attributes:
        known: for each node of the program that was visited.
        saved_products: multiplications that a pair no longer does.
    """

    def __init__(
        self, program: GraphModule, kinds: Mapping[Node, Kind], kinds_of_one: Mapping[Node, Kind]
    ) -> None:
        """Starts with empty graphs.

        Args:
            kinds: of a run with several samples.
            kinds_of_one: of a run with one.
        """
        self.program = program
        self.known: dict[Node, Known] = {}
        self.saved_products = 0
        self._kinds, self._kinds_of_one = kinds, kinds_of_one
        self._graphs = {True: Graph(), False: Graph()}
        self._held: dict[str, Any] = {}
        self._copies: dict[tuple[bool, Node], Node] = {}
        self._rows: dict[Node, Node] = {}
        self._whole_rows: dict[Node, Node] = {}
        self._shared: dict[Node, Node] = {}  # of the second graph's inputs, the first's outputs
        self._counted: dict[bool, Node] = {}
        self._last_input: Node | None = None

    def add_input(self, by_request: bool, name: str, *, counts: bool = False) -> Node:
        """Adds an input.

        Args:
            counts: whether the graph reads its number of rows from it.
        """
        node = self._graphs[by_request].placeholder(name)
        if counts:
            self._counted[by_request] = node
        if not by_request:
            self._last_input = node
        return node

    def shape(self, node: Node) -> tuple[int, ...] | None:
        """The shape of one sample's part; None if the first axis is not the samples'."""
        if node not in self._kinds or node not in self._kinds_of_one:
            return None
        shape, of_one = self._kinds[node][1], self._kinds_of_one[node][1]
        if len(shape) == 0 or len(shape) != len(of_one):
            return None
        by_sample = of_one[0] == 1 and shape[0] != 1 and shape[1:] == of_one[1:]
        return tuple(shape[1:]) if by_sample else None

    def dtype(self, node: Node) -> torch.dtype | None:
        """The dtype of a tensor."""
        return self._kinds[node][0] if node in self._kinds else None

    def call(self, by_request: bool, target: Any, *args: Any) -> Node:
        """Calls an operator on nodes of the graph."""
        return self._graphs[by_request].call_function(target, args)

    def constant(self, by_request: bool, tensor: Tensor) -> Node:
        """A new constant of the graph."""
        name = f"_split_{len(self._held)}"
        self._held[name] = tensor
        return self._graphs[by_request].get_attr(name)

    def module(self, by_request: bool, module: torch.nn.Module, *args: Any) -> Node:
        """Calls a new module on nodes of the graph."""
        name = f"_split_{len(self._held)}"
        self._held[name] = module
        return self._graphs[by_request].call_module(name, args)

    def item(self, by_request: bool, node: Node, position: int) -> Node:
        """One of the results of a node."""
        return self.call(by_request, operator.getitem, node, position)

    def like(self, by_request: bool, node: Node, arguments: Mapping[Node, Node]) -> Node:
        """The same call with other nodes as its arguments."""
        return self._graphs[by_request].node_copy(node, lambda one: arguments[one])

    def copy(self, by_request: bool, node: Node) -> Node:
        """The node with its arguments as the graph has them."""
        key = by_request, node
        if key not in self._copies:
            self._copies[key] = self._copy(by_request, node)
        return self._copies[key]

    def _copy(self, by_request: bool, node: Node) -> Node:
        if node.op in ("get_attr", "call_module"):
            target = str(node.target)
            self._held[target] = _attribute(self.program, target)
        if counts_samples(node):
            return self.call(by_request, _aten.sym_size.int, self._counted[by_request], 0)
        repeated = node.target in _READ_REPEATED
        arguments = {
            one: self.at(by_request, one, repeated=repeated) for one in node.all_input_nodes
        }
        return self.like(by_request, node, arguments)

    def at(self, by_request: bool, node: Node, *, repeated: bool = False) -> Node:
        """A value of the program in one of the graphs.

        Args:
            repeated: whether rows by request may come as a view that repeats them.
        """
        known = self.known[node]
        if isinstance(known, Value) and known.by_request == by_request:
            return known.node
        if isinstance(known, Value) and self.shape(node) is not None:
            return self.rows(known.node, repeated=repeated)
        if isinstance(known, Parts):
            return self._put_together(node, known)
        return self.copy(by_request, node)

    def rows(self, node: Node, *, repeated: bool = True) -> Node:
        """Each pair's row of a node of the graph by request."""
        if node not in self._rows:
            graph = self._graphs[False]
            if self._last_input is None:
                raise ValueError("a graph by pair needs its owners first")
            with graph.inserting_after(self._last_input):
                given = graph.placeholder(f"shared{len(self._shared)}")
            self._last_input = given
            self._shared[given] = node
            self._rows[node] = self.call(False, rows_of_pairs, given, self._counted[False])
        if repeated:
            return self._rows[node]
        if node not in self._whole_rows:
            self._whole_rows[node] = self.call(False, _aten.contiguous.default, self._rows[node])
        return self._whole_rows[node]

    def _put_together(self, node: Node, parts: Parts) -> Node:
        key = False, node
        if key not in self._copies:
            sources = {True: self.rows(parts.request), False: parts.pair}
            starts = {True: 0, False: 0}
            sizes = {flag: sum(s for f, s in parts.runs if f == flag) for flag in (True, False)}
            pieces = []
            for by_request, size in parts.runs:
                piece, start = sources[by_request], starts[by_request]
                if size != sizes[by_request]:
                    piece = self.call(
                        False, _aten.slice.Tensor, piece, parts.dim, start, start + size
                    )
                pieces.append(piece)
                starts[by_request] = start + size
            self._copies[key] = self.call(False, _aten.cat.default, pieces, parts.dim)
        return self._copies[key]

    def build(self, outputs: Sequence[Node]) -> tuple[GraphModule, GraphModule]:
        """The programs by request and by pair.

        Args:
            outputs: nodes of the graph by pair.
        """
        self._graphs[False].output(tuple(outputs))
        pair = GraphModule(self._held, self._graphs[False])
        pair.graph.eliminate_dead_code()
        used = {}
        for given, node in zip(pair.graph.find_nodes(op="placeholder"), self._given(), strict=True):
            if node is not None and not given.users:
                pair.graph.erase_node(given)
            elif node is not None:
                used[given] = node
        self._graphs[True].output(tuple(used.values()))
        request = GraphModule(self._held, self._graphs[True])
        request.graph.eliminate_dead_code()
        for program in (request, pair):
            program.delete_all_unused_submodules()
            give_up_unused(program)
            program.recompile()
        return request.eval(), pair.eval()

    def _given(self) -> list[Node | None]:
        """For each input of the graph by pair, what it is in the graph by request."""
        inputs = self._graphs[False].find_nodes(op="placeholder")
        return [self._shared.get(one) for one in inputs]


def counts_samples(node: Node) -> bool:
    """Whether a node is the size of a value's first axis."""
    return node.target is _aten.sym_size.int and node.args[1:] == (0,)


def _attribute(program: GraphModule, target: str) -> Any:
    owner, _, name = target.rpartition(".")
    return getattr(program.get_submodule(owner), name)
