"""Canonical layout of one request's rows, however a module transposes and splits them.

    y = linear(x.transpose(0, 1), W).transpose(0, 1)                ->  y = linear(x, W)
    attention(linear(x, W).view(L, 3, H, d)[:, 0].permute(1, 0, 2), ...)
                                                    ->  attention on linear(x, W)[:, :, : H * d]

Batches are one request here, so that `[1, L, W]` and `[L, 1, W]` have the same numbers.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.constants import add_call
from sharded_infer.towers.lowering.rewriting import module_of, remove_unused
from sharded_infer.towers.lowering.sequences.attention import AttentionPass, HeadsPass
from sharded_infer.towers.lowering.sequences.row_operators import RowColumns, RowOperators
from sharded_infer.towers.lowering.sequences.views import Rows, Views

_aten = torch.ops.aten
_REPEATING: Final = (_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor)


def use_canonical_layout(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Rewrites rows and attentions to the canonical layout, in place; returns their number.

    `program` runs for one request, with its products packed and its attentions fused; `inputs` have
    several lengths, which no two sequences share.
    """
    changes = _Layout(program, inputs).run()
    if changes:
        remove_unused(program)
    return changes


class _Layout:
    def __init__(self, program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> None:
        self._program, self._graph = program, program.graph
        self._views = Views(program, inputs)
        kinds = self._kinds = self._views.kinds
        self._rows = RowOperators(program, kinds)
        self._flat: dict[Node, Node] = {}  # `[1, L, W]` of nodes that have such rows
        self._attended: dict[Node, Node] = {}  # of attentions, the rows of all heads

    def run(self) -> int:
        changes: list[tuple[Node, dict[Node, Node]]] = []
        turned: list[tuple[Node, Node]] = []
        for node in list(self._graph.nodes):
            if not node.op.startswith("call"):
                continue
            with self._graph.inserting_before(node):
                if node in self._rows.found and self._has_rows(node):
                    made = self._flat[node] = self._computed(node)
                    if made is not node:
                        turned.append((node, made))
                    continue
                heads = self._heads(node)
                if heads is not None:
                    self._attended[node] = heads
                    turned.append((node, heads))
                    continue
                given = self._others(node)
            if given:
                changes.append((node, given))
        for node, given in changes:
            for one, other in given.items():
                node.replace_input_with(one, other)
        for node, made in turned:
            with self._graph.inserting_before(node):
                node.replace_all_uses_with(self._in_shape(made, node))
        return len(changes) + len(turned)

    def _has_rows(self, node: object) -> bool:
        layout = self._views.layout(node)
        return layout is not None and layout.rows is Rows.ALL

    def _computed(self, node: Node) -> Node:
        """An operator on rows, in the canonical layout; itself if it has it."""
        given = {one: self._as_flat(one) for one in node.all_input_nodes if self._has_rows(one)}
        if self._is_flat(node) and all(one is other for one, other in given.items()):
            return node
        made = self._graph.node_copy(node, lambda one: given.get(one, one))
        if node.target is _aten.cat.default:
            # The last axis has another number in another shape.
            made.args = made.args[0], -1
        return made

    def _is_flat(self, node: Node) -> bool:
        shape = self._views.shape(node)
        return len(shape) == 3 and shape[0] == 1 and shape[1] is None

    def _others(self, node: Node) -> dict[Node, Node]:
        """Inputs in the canonical layout: views of a value in it, or values that it repeats."""
        repeats = node.target in _REPEATING and self._has_rows(node) and self._is_flat(node)
        found = {
            one: self._as_flat(one)
            for one in node.all_input_nodes
            if self._has_rows(one)
            and ((self._is_flat(one) and self._views.of(one).base is not one) or repeats)
        }
        return {one: flat for one, flat in found.items() if flat is not one}

    def _heads(self, node: Node) -> Node | None:
        """An attention of one request on rows with the columns of all heads."""
        found = module_of(self._program, node, AttentionPass)
        read: list[Any] = list(node.args[:3])
        if found is None or any(one not in kinds for one in read for kinds in self._kinds):
            return None
        shapes = list(map(self._views.shape, read))
        if any(len(shape) != 4 or shape[0] != 1 for shape in shapes):
            return None
        heads = {shape[1] for shape in shapes}
        if len(heads) != 1 or self._kinds[0][node][0] is not torch.float32:
            return None
        columns = list(map(self._columns_of_heads, read))
        if not any(columns):
            return None
        widths = [(0, shape[3]) for shape in shapes]
        made = HeadsPass(found.attention, heads.pop(), widths)  # type: ignore[arg-type]
        given = (*map(self._rows_of_heads, read, columns), *node.args[3:])
        return add_call(self._program, "_heads", made, given)

    def _rows_of_heads(self, node: Node, columns: RowColumns | None) -> Node:
        if columns is not None:
            return self._cut(self._as_flat(columns.node), columns)
        turned = self._call(_aten.transpose.int, node, 1, 2)
        return self._call(_aten.flatten.using_ints, turned, 2)

    def _as_flat(self, node: Node) -> Node:
        """Rows `[1, L, W]` with a node's numbers."""
        if node not in self._flat:
            self._flat[node] = self._made_flat(node)
        return self._flat[node]

    def _made_flat(self, node: Node) -> Node:
        # With one head they are columns, too.
        if self._joins_heads(node):
            return self._attended[self._views.of(node).base]
        columns = self._columns(node)
        if columns is not None:
            return self._cut(self._as_flat(columns.node), columns)
        if self._is_flat(node):
            return node
        shape, made = self._views.shape(node), node
        for axis in reversed(range(len(shape) - 1)):
            if shape[axis] is not None:
                made = self._call(_aten.squeeze.dim, made, axis)
        return self._call(_aten.unsqueeze.default, made, 0)

    def _in_shape(self, flat: Node, node: Node) -> Node:
        if node in self._attended:
            divided = self._call(_aten.unflatten.int, flat, 2, list(self._views.shape(node)[1::2]))
            return self._call(_aten.transpose.int, divided, 1, 2)
        if self._is_flat(node):
            return flat
        made = self._call(_aten.squeeze.dim, flat, 0)
        for axis, size in enumerate(self._views.shape(node)[:-1]):
            if size is not None:
                made = self._call(_aten.unsqueeze.default, made, axis)
        return made

    def _call(self, target: Any, *args: Any) -> Node:
        return self._graph.call_function(target, args)

    def _cut(self, flat: Node, columns: RowColumns) -> Node:
        layout = self._views.layout(columns.node)
        if layout is None or layout.width == columns.width:
            return flat
        end = columns.first + columns.width
        return self._call(_aten.slice.Tensor, flat, 2, columns.first, end)

    def _columns(self, node: Node) -> RowColumns | None:
        base, numbers = self._views.of(node)
        if base is node or not (self._has_rows(node) and self._has_rows(base)):
            return None
        return self._same_columns(base, list(map(_rows, numbers)))

    def _columns_of_heads(self, node: Node) -> RowColumns | None:
        """Columns of its base's rows that make up the heads `[1, H, L, d]`."""
        base, numbers = self._views.of(node)
        shape = self._views.shape(node) if node in self._kinds[0] else ()
        if len(shape) != 4 or shape[0] != 1 or shape[2] is not None or not self._has_rows(base):
            return None
        return self._same_columns(base, [one.transpose(1, 2).flatten(2)[0] for one in numbers])

    def _same_columns(self, base: Node, numbers: Sequence[Tensor]) -> RowColumns | None:
        """Columns whose places are `[L, w]`, in each run the same."""
        layout, found = self._views.layout(base), set()
        for places in numbers:
            first, width = int(places[0, 0]), places.shape[1]
            starts = torch.arange(len(places)).unsqueeze(1) * (
                0 if layout is None else layout.width
            )
            if not torch.equal(places, starts + first + torch.arange(width)):
                return None
            found.add((first, width))
        return RowColumns(base, *found.pop()) if len(found) == 1 else None

    def _joins_heads(self, node: Node) -> bool:
        base, places = self._views.of(node)
        if base not in self._attended or not self._has_rows(node):
            return False
        both = zip(places, self._views.of(base).places, strict=True)
        return all(
            torch.equal(_rows(some), every.transpose(1, 2).flatten(2)[0]) for some, every in both
        )


def _rows(places: Tensor) -> Tensor:
    """Places of rows as `[L, W]`, without axes of size 1."""
    return places.reshape(-1, places.shape[-1])
