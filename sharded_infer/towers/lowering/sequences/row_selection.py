"""Selects rows before they are computed, where the others are not read.

    gather(linear(x, W, b), 1, index)       ->  linear(x[:, index], W, b)
    gather(attention(q, k, v), 1, index)    ->  attention(q[:, index], k, v)

Rankers read a transformer's last layer at the last position alone: row-wise operators then run on
that row, and the attention before it on one query.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.rewriting import module_of, remove_unused
from sharded_infer.towers.lowering.sequences.attention import HeadsPass
from sharded_infer.towers.lowering.sequences.row_operators import RowOperators
from sharded_infer.towers.lowering.tensor_kinds import Kind, kinds_of

_aten = torch.ops.aten
_SELECTING: Final = (_aten.gather.default, _aten.select.int, _aten.index.Tensor)


def select_rows(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Moves selections of one row before the rows' operators, in place; returns their number.

    `program` runs for one request, with its products packed and in the canonical layout; `inputs`
    have several lengths.
    """
    kinds = [kinds_of(program, one) for one in inputs]
    rows = RowOperators(program, kinds)
    moved = 0
    for node in list(program.graph.nodes):
        selection = _selection(node, kinds)
        if selection is not None and _Chain(program, rows, kinds, selection).move():
            moved += 1
    if moved:
        remove_unused(program)
    return moved


class _Selection(NamedTuple):
    """A node that reads one row of `[1, L, W]`; if `kept` as `[1, 1, W]`, not `[1, W]`."""

    node: Node
    source: Node
    kept: bool


def _selection(node: Node, kinds: Sequence[Mapping[Node, Kind]]) -> _Selection | None:
    if node.target not in _SELECTING or node.kwargs:
        return None
    source, *rest = node.args
    if not isinstance(source, Node) or any(len(_shape(of, source)) != 3 for of in kinds):
        return None
    if node.target is _aten.gather.default:
        axis, spread = rest
        if axis not in (1, -2) or not isinstance(spread, Node):
            return None
        # The same position for all columns.
        is_one = spread.target is _aten.expand.default and all(
            _shape(of, spread.args[0]) == (1, 1, 1)
            and _shape(of, node)[2:] == _shape(of, source)[2:]
            for of in kinds
        )
        return _Selection(node, source, kept=True) if is_one else None
    if node.target is _aten.select.int:
        return _Selection(node, source, kept=False) if rest[0] in (1, -2) else None
    indices = rest[0]
    if not isinstance(indices, list | tuple) or len(indices) != 2:
        return None
    # One position of the one sample.
    first, index = indices
    if not isinstance(first, Node) or not isinstance(index, Node):
        return None
    is_one = first.target is _aten.arange.default and all(
        of.get(index) == (torch.int64, (1,)) == of.get(first) for of in kinds
    )
    return _Selection(node, source, kept=False) if is_one else None


def _shape(kinds: Mapping[Node, Kind], node: object) -> torch.Size:
    found = kinds.get(node)  # type: ignore[call-overload]
    return torch.Size() if found is None else found[1]


class _Chain:
    """Row-wise operators that only a selection reads.

    Attributes:
        reads: of each of its nodes, from the last one on, the nodes that it reads row by row, and
            the axis of their rows.
    """

    def __init__(
        self,
        program: GraphModule,
        rows: RowOperators,
        kinds: Sequence[Mapping[Node, Kind]],
        selection: _Selection,
    ) -> None:
        self._program, self._rows, self._kinds = program, rows, kinds
        self._selection = selection
        self.reads: dict[Node, dict[Node, int]] = {selection.node: {selection.source: 1}}
        for node in reversed(program.graph.nodes):
            axes = {self.reads.get(user, {}).get(node) for user in node.users}
            found = self._read(node) if axes == {1} else None
            if found is not None:
                self.reads[node] = found
        del self.reads[selection.node]

    def move(self) -> bool:
        """Computes the chain of the one row alone; False if it has nothing to compute."""
        node, source, kept = self._selection
        if not any(one in self._rows.found or self._attention(one) for one in self.reads):
            return False
        graph = self._program.graph
        selected: dict[Node, Node] = {}
        with graph.inserting_before(node):
            index = self._position()

            def row(one: Node, axis: int) -> Node:
                if one not in selected:
                    arguments = one, axis, index
                    selected[one] = graph.call_function(_aten.index_select.default, arguments)
                return selected[one]

            for one, reads in reversed(self.reads.items()):
                given = {read: row(read, axis) for read, axis in reads.items()}
                selected[one] = self._of_one_row(one, given, index)
            made = selected[source]
            if not kept:
                made = graph.call_function(_aten.select.int, (made, 1, 0))
        node.replace_all_uses_with(made)
        return True

    def _position(self) -> Node:
        """The position that is read, int64 `[1]`, from 0 on."""
        graph, node = self._program.graph, self._selection.node
        if node.target is _aten.gather.default:
            spread: Node = node.args[2]  # type: ignore[assignment]
            return graph.call_function(_aten.reshape.default, (spread.args[0], [1]))
        # Of a value that keeps its length.
        read = next(
            one for of in self.reads.values() for one in of.items() if one[0] not in self.reads
        )
        length = graph.call_function(_aten.sym_size.int, read)
        positions = graph.call_function(_aten.arange.default, (length,))
        # Read like the rows, it counts positions from the end as they do.
        if node.target is _aten.index.Tensor:
            chosen = node.args[1][1]  # type: ignore[index]
            return graph.call_function(_aten.index.Tensor, (positions, [chosen]))
        at: int = node.args[2]  # type: ignore[assignment]
        one = graph.call_function(_aten.select.int, (positions, 0, at))
        return graph.call_function(_aten.reshape.default, (one, [1]))

    def _of_one_row(self, node: Node, given: Mapping[Node, Node], index: Node) -> Node:
        graph = self._program.graph
        attention = self._attention(node)
        if attention is None:
            return graph.node_copy(node, lambda one: given.get(one, one))
        rows = [given.get(one, one) if isinstance(one, Node) else one for one in node.args]
        first = index if attention.attention.causal else None
        arguments = (rows[0], *node.args[1:3], *rows[3:], first)
        return graph.call_module(str(node.target), arguments)

    def _read(self, node: Node) -> dict[Node, int] | None:
        """Nodes that a node reads row by row, and their axes of rows.

        None if it does not compute each row by itself.
        """
        if self._attention(node) is not None:
            return self._read_by_attention(node)
        # Other readers of divided columns, such as keys and values, need all rows.
        is_row = node in self._rows.found or node in self._rows.views
        if not is_row or node.target is operator.getitem:
            return None
        return {one: 1 for one in node.all_input_nodes if one.op != "get_attr"}

    def _attention(self, node: Node) -> HeadsPass | None:
        return module_of(self._program, node, HeadsPass)

    def _read_by_attention(self, node: Node) -> dict[Node, int]:
        query, _, _, *added = node.args
        reads: dict[Node, int] = {query: 1}  # type: ignore[dict-item]
        for one in added:
            if not isinstance(one, Node):
                continue
            shapes = [_shape(of, one) for of in self._kinds]
            if any(shape[-2:-1] != (1,) for shape in shapes) and all(map(len, shapes)):
                reads[one] = len(shapes[0]) - 2
        return reads
