"""The two graphs that a program is split into: by request, then by pair.

A value by request that a pair reads is an output of the first graph. In the second, each pair takes
the row of its request.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from sharded_infer.towers.lowering.rewriting import remove_unused
from sharded_infer.towers.split.parts import Known, Parts, Value, positions_of
from sharded_infer.towers.split.sizes import Layout, Sizes

_aten = torch.ops.aten
# They read a row that is repeated as well as its copies.
_READ_REPEATED: Final = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.cat.default),
    *(_aten.sum.dim_IntList, _aten.matmul.default),
)
# They do not read a row that is repeated; all others do.
_READ_COPIES: Final = (
    *(torch.ops.mkldnn._linear_pointwise.default, torch.ops.onednn.qlinear_pointwise.default),
)
# They need the strides that the whole program gave their input.
_VIEWS: Final = (_aten.view.default, _aten._unsafe_view.default)


def rows_of_pairs(values: Tensor, owners: Tensor) -> Tensor:
    """Each pair's row of `[R, ...]` values, by the request in int64 `[B]` owners.

    One request's result is a view that repeats its row, without a copy.
    """
    rows, *others = values.shape
    if rows == 1:
        return values.expand(owners.shape[0], *others)
    return values.index_select(0, owners)


def repeated_along(values: Tensor, owners: Tensor, axis: int) -> Tensor:
    """One request's value once per owner `[B]`, side by side along the axis.

    A view if its size there is 1.
    """
    blocks = values.unsqueeze(axis)
    sizes = [-1] * blocks.dim()
    sizes[axis] = len(owners)
    return blocks.expand(sizes).flatten(axis, axis + 1)


class SplitGraphs:
    """The graphs during a split, and what is known of the program's values.

    Attributes:
        alone: True if the graph by request runs for one request at a time. Then its values may have
            their samples along any axis, or none.
        takes_one: True if the graph by pair takes values of one request, not a row of each.
        known: for each visited node of the program.
        saved_products: multiplications that a pair no longer does.
    """

    def __init__(self, program: GraphModule, sizes: Sizes, *, alone: bool = False) -> None:
        self.program, self.sizes, self.alone = program, sizes, alone
        self.known: dict[Node, Known] = {}
        self.saved_products = 0
        self.takes_one = False
        self._graphs = {True: Graph(), False: Graph()}
        self._held: dict[str, Any] = {}
        self._copies: dict[tuple[bool, Node], Node] = {}
        self._rows: dict[Node, Node] = {}
        self._given_nodes: dict[Node, Node] = {}
        self._whole_rows: dict[Node, Node] = {}
        self._shared: dict[Node, Node] = {}  # of the second graph's inputs, the first's outputs
        self._counted: dict[bool, Node] = {}
        self._last_input: Node | None = None

    def add_input(self, by_request: bool, name: str, *, counts: bool = False) -> Node:
        """Adds an input; with `counts`, the graph reads its number of rows from it."""
        node = self._graphs[by_request].placeholder(name)
        if counts:
            self._counted[by_request] = node
        if not by_request:
            self._last_input = node
        return node

    def call(self, by_request: bool, target: Any, *args: Any) -> Node:
        """Calls an operator on nodes of the graph."""
        return self._graphs[by_request].call_function(target, args)

    def parts(self, node: object) -> Parts | None:
        """A value of the program that is part by request; None for others."""
        known = self.known.get(node) if isinstance(node, Node) else None
        return known if isinstance(known, Parts) else None

    def value(self, node: object, *, by_request: bool) -> Value | None:
        """A value of the program that is by request, or by pair; None for others."""
        known = self.known.get(node) if isinstance(node, Node) else None
        return known if isinstance(known, Value) and known.by_request == by_request else None

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
        if self.alone and node.target in _VIEWS:
            given = map_arg(node.args, lambda one: arguments[one])
            return self.call(by_request, _aten.reshape.default, *given)
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
        if node.target is _aten.sym_size.int and isinstance(node.args[0], Node):
            source, axis = node.args[0], node.args[1]
            if counts_samples(node) and self.sizes.shape(source) is not None:
                return self.call(by_request, _aten.sym_size.int, self._counted[by_request], 0)
            known, layout = self.known[source], self.sizes.layout(source)
            is_length = layout is None or layout.axis != axis
            if is_length and not by_request and isinstance(known, Value) and known.by_request:
                return self.call(False, _aten.sym_size.int, self.given(known.node), axis)
        repeated = node.target not in _READ_COPIES if self.alone else node.target in _READ_REPEATED
        arguments = {
            one: self.at(by_request, one, repeated=repeated) for one in node.all_input_nodes
        }
        return self.like(by_request, node, arguments)

    def at(self, by_request: bool, node: Node, *, repeated: bool = False) -> Node:
        """A value of the program in one of the graphs.

        With `repeated`, rows by request may come as a view that repeats them.
        """
        known = self.known[node]
        if isinstance(known, Value) and known.by_request == by_request:
            return known.node
        if isinstance(known, Value) and self.sizes.shape(node) is not None:
            return self.rows(known.node, repeated=repeated)
        if isinstance(known, Value) and self.alone:
            layout = self.sizes.layout(node)
            if layout is not None:
                return self.rows(known.node, repeated=repeated, layout=layout)
            if self.sizes.is_alike(node):
                return self.given(known.node)
        if isinstance(known, Parts):
            return self._put_together(node, known)
        return self.copy(by_request, node)

    def given(self, node: Node) -> Node:
        """A node of the graph by request, for one request, in the graph by pair."""
        self.takes_one = True
        return self._given(node)

    def _given(self, node: Node) -> Node:
        if node not in self._given_nodes:
            graph = self._graphs[False]
            if self._last_input is None:
                raise ValueError("a graph by pair needs its owners first")
            with graph.inserting_after(self._last_input):
                made = graph.placeholder(f"shared{len(self._shared)}")
            self._last_input = made
            self._shared[made] = node
            self._given_nodes[node] = made
        return self._given_nodes[node]

    def rows(self, node: Node, *, repeated: bool = True, layout: Layout | None = None) -> Node:
        """Each pair's row of a node of the graph by request; of one request along a layout."""
        if node not in self._rows:
            owners = self._counted[False]
            if layout is None:
                made = self.call(False, rows_of_pairs, self._given(node), owners)
            else:
                made = self.call(False, repeated_along, self.given(node), owners, layout.axis)
            self._rows[node] = made
        rows = self._rows[node]
        if repeated:
            return rows
        if rows not in self._whole_rows:
            self._whole_rows[rows] = self.call(False, _aten.contiguous.default, rows)
        return self._whole_rows[rows]

    def _put_together(self, node: Node, parts: Parts) -> Node:
        key = False, node
        if key not in self._copies:
            sources = {True: self.rows(parts.request), False: parts.pair}
            starts = {True: 0, False: 0}
            pieces = []
            for by_request, size in parts.runs:
                piece, start = sources[by_request], starts[by_request]
                end = starts[by_request] = start + size
                if size != len(positions_of(parts.runs, by_request)):
                    piece = self.call(False, _aten.slice.Tensor, piece, parts.dim, start, end)
                pieces.append(piece)
            self._copies[key] = self.call(False, _aten.cat.default, pieces, parts.dim)
        return self._copies[key]

    def build(self, outputs: Sequence[Node]) -> tuple[GraphModule, GraphModule]:
        """The programs by request and by pair; `outputs` are nodes of the latter."""
        self._graphs[False].output(tuple(outputs))
        pair = GraphModule(self._held, self._graphs[False])
        pair.graph.eliminate_dead_code()
        used = []
        inputs = self._graphs[False].find_nodes(op="placeholder")
        for given, own in zip(pair.graph.find_nodes(op="placeholder"), inputs, strict=True):
            node = self._shared.get(own)
            if node is not None and given.users:
                used.append(node)
            elif node is not None:
                pair.graph.erase_node(given)
        self._graphs[True].output(tuple(used))
        request = GraphModule(self._held, self._graphs[True])
        for program in (request, pair):
            remove_unused(program)
        return request.eval(), pair.eval()


def counts_samples(node: Node) -> bool:
    """True if a node is the size of a value's first axis."""
    return node.target is _aten.sym_size.int and node.args[1:] == (0,)


def _attribute(program: GraphModule, target: str) -> Any:
    owner, _, name = target.rpartition(".")
    return getattr(program.get_submodule(owner), name)
