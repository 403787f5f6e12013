"""Canonical layout of one request's rows, however a module transposes and splits them.

    y = linear(x.transpose(0, 1), W).transpose(0, 1)                ->  y = linear(x, W)
    q = linear(x, W).view(L, 3, H, d)[:, 0].permute(1, 0, 2)        ->  heads of the first columns

Batches are one request here, so that `[1, L, W]` and `[L, 1, W]` have the same numbers. A chain of
views is run on indices to find those it has.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from sharded_infer.towers.lowering.rewriting import (
    COPIES,
    DIVISIONS,
    RESHAPES,
    module_of,
    remove_unused,
)
from sharded_infer.towers.lowering.sequences.attention import AttentionPass
from sharded_infer.towers.lowering.sequences.request_layouts import RequestLayouts, Rows
from sharded_infer.towers.lowering.sequences.row_operators import RowOperators
from sharded_infer.towers.lowering.tensor_kinds import kinds_and_sizes

_aten = torch.ops.aten
_VIEWS: Final = (
    *(_aten.transpose.int, _aten.permute.default, _aten.swapaxes.default, _aten.movedim.int),
    *(_aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims),
    *(_aten.select.int, _aten.slice.Tensor, operator.getitem),
    *(*RESHAPES, *COPIES, *DIVISIONS),
)
_REPEATING: Final = (_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor)
# Numbers of a tensor whose places are computed.
_MOST_NUMBERS: Final = 2**16


def use_canonical_layout(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Rewrites rows and reads of heads to the canonical layout, in place; returns their number.

    `program` runs for one request, with its products packed and its attentions fused; `inputs` have
    several lengths, which no two sequences share.
    """
    flattening = _Layout(program, list(inputs))
    changes = flattening.run()
    if changes:
        remove_unused(program)
    return changes


class _Places(NamedTuple):
    """Indices into its base of a tensor's numbers, in each run."""

    base: Node
    numbers: tuple[Any, ...]


class _Columns(NamedTuple):
    base: Node
    first: int
    width: int


class _Layout:
    def __init__(self, program: GraphModule, runs: Sequence[Sequence[Tensor]]) -> None:
        self._program, self._graph = program, program.graph
        seen = [kinds_and_sizes(program, run) for run in runs]
        kinds = self._kinds = [of_run for of_run, _ in seen]
        self._sizes = [of_run for _, of_run in seen]
        self._layouts = RequestLayouts(kinds)
        self._rows = RowOperators(program, kinds)
        self._places: dict[Node, _Places] = {}
        self._flat: dict[Node, Node] = {}  # `[1, L, W]` of nodes that have such rows

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
                given = self._heads(node) or self._others(node)
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
        layout = self._layouts.of(node)
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
        shape = self._layouts.shape(node)
        return len(shape) == 3 and shape[0] == 1 and shape[1] is None

    def _others(self, node: Node) -> dict[Node, Node]:
        """Inputs in the canonical layout: views of a value in it, or values that it repeats."""
        repeats = node.target in _REPEATING and self._has_rows(node) and self._is_flat(node)
        found = {
            one: self._as_flat(one)
            for one in node.all_input_nodes
            if self._has_rows(one)
            and ((self._is_flat(one) and self._of(one).base is not one) or repeats)
        }
        return {one: flat for one, flat in found.items() if flat is not one}

    def _heads(self, node: Node) -> dict[Node, Node]:
        """Queries, keys and values of an attention as transposed columns of rows."""
        if module_of(self._program, node, AttentionPass) is None:
            return {}
        found = {}
        for one in node.args[:3]:
            heads = self._columns_of_heads(one) if isinstance(one, Node) else None
            if heads is None or not isinstance(one, Node):
                continue
            count, width = self._layouts.shape(one)[1::2]
            columns = self._cut(self._as_flat(heads.base), heads)
            divided = self._call(_aten.unflatten.int, columns, 2, [count, width])
            found[one] = self._call(_aten.transpose.int, divided, 1, 2)
        return found

    def _as_flat(self, node: Node) -> Node:
        """Rows `[1, L, W]` with a node's numbers."""
        if node not in self._flat:
            self._flat[node] = self._made_flat(node)
        return self._flat[node]

    def _made_flat(self, node: Node) -> Node:
        # With one head they are columns, too.
        joined = self._joined_heads(node)
        if joined is not None:
            turned = self._call(_aten.transpose.int, joined, 1, 2)
            return self._call(_aten.flatten.using_ints, turned, 2)
        columns = self._columns(node)
        if columns is not None:
            return self._cut(self._as_flat(columns.base), columns)
        if self._is_flat(node):
            return node
        shape, made = self._layouts.shape(node), node
        for axis in reversed(range(len(shape) - 1)):
            if shape[axis] is not None:
                made = self._call(_aten.squeeze.dim, made, axis)
        return self._call(_aten.unsqueeze.default, made, 0)

    def _in_shape(self, flat: Node, node: Node) -> Node:
        if self._is_flat(node):
            return flat
        made = self._call(_aten.squeeze.dim, flat, 0)
        for axis, size in enumerate(self._layouts.shape(node)[:-1]):
            if size is not None:
                made = self._call(_aten.unsqueeze.default, made, axis)
        return made

    def _call(self, target: Any, *args: Any) -> Node:
        return self._graph.call_function(target, args)

    def _cut(self, flat: Node, columns: _Columns) -> Node:
        layout = self._layouts.of(columns.base)
        if layout is None or layout.width == columns.width:
            return flat
        end = columns.first + columns.width
        return self._call(_aten.slice.Tensor, flat, 2, columns.first, end)

    def _columns(self, node: Node) -> _Columns | None:
        base, numbers = self._of(node)
        if base is node or not (self._has_rows(node) and self._has_rows(base)):
            return None
        return self._same_columns(base, list(map(_rows, numbers)))

    def _columns_of_heads(self, node: Node) -> _Columns | None:
        """Columns of its base's rows that make up the heads `[1, H, L, d]`."""
        base, numbers = self._of(node)
        shape = self._layouts.shape(node) if node in self._kinds[0] else ()
        if len(shape) != 4 or shape[0] != 1 or shape[2] is not None or not self._has_rows(base):
            return None
        return self._same_columns(base, [one.transpose(1, 2).flatten(2)[0] for one in numbers])

    def _same_columns(self, base: Node, numbers: Sequence[Tensor]) -> _Columns | None:
        """Columns whose places are `[L, w]`, in each run the same."""
        layout, found = self._layouts.of(base), set()
        for places in numbers:
            first, width = int(places[0, 0]), places.shape[1]
            starts = torch.arange(len(places)).unsqueeze(1) * (
                0 if layout is None else layout.width
            )
            if not torch.equal(places, starts + first + torch.arange(width)):
                return None
            found.add((first, width))
        return _Columns(base, *found.pop()) if len(found) == 1 else None

    def _joined_heads(self, node: Node) -> Node | None:
        base, numbers = self._of(node)
        if module_of(self._program, base, AttentionPass) is None or not self._has_rows(node):
            return None
        for kinds, places in zip(self._kinds, numbers, strict=True):
            whole = torch.arange(kinds[base][1].numel()).view(kinds[base][1])
            if not torch.equal(_rows(places), whole.transpose(1, 2).flatten(2)[0]):
                return None
        return base

    def _of(self, node: Node) -> _Places:
        """The base of a view; other nodes themselves."""
        if node not in self._places:
            self._places[node] = self._viewed(node) or _Places(node, self._own(node))
        return self._places[node]

    def _own(self, node: Node) -> tuple[Any, ...]:
        sizes = [kinds[node][1] if node in kinds else torch.Size([0]) for kinds in self._kinds]
        if any(size.numel() > _MOST_NUMBERS for size in sizes):
            return tuple(torch.empty(0) for _ in sizes)
        return tuple(torch.arange(size.numel()).view(size) for size in sizes)

    def _viewed(self, node: Node) -> _Places | None:
        target: Any = node.target
        if target not in _VIEWS or not isinstance(node.args[0], Node):
            return None
        whole = node.args[0]
        if whole.op == "get_attr" or not (whole in self._kinds[0] or whole.target in DIVISIONS):
            return None
        sizes = [one for one in node.all_input_nodes if one is not whole]
        if any(one not in values for one in sizes for values in self._sizes):
            return None
        base, numbers = self._of(whole)
        made = []
        for values, given in zip(self._sizes, numbers, strict=True):
            if isinstance(given, Tensor) and not given.numel():
                return None
            rest = map_arg((node.args[1:], node.kwargs), values.__getitem__)
            made.append(target(given, *rest[0], **rest[1]))
        return _Places(base, tuple(made))


def _rows(places: Tensor) -> Tensor:
    """Places of rows as `[L, W]`, without axes of size 1."""
    return places.reshape(-1, places.shape[-1])
