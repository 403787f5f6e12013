"""A module's graph without its lookups, as a tower."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from sharded_infer.errors import InternalError, SpecError, TowerError
from sharded_infer.importing.modules.example import Example
from sharded_infer.importing.modules.exported import source_line
from sharded_infer.importing.modules.id_tags import Cell, IdTags
from sharded_infer.importing.modules.keyed_bags import BAG_LENGTHS
from sharded_infer.importing.modules.lookups import ModuleLookup, table_path
from sharded_infer.importing.modules.placement import Block, Placement, table_key
from sharded_infer.importing.tower_source import ProgramTower
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.sequence_input import IDS
from sharded_infer.towers.program.tower_inputs import EMBEDDINGS, TowerInputs

_ATEN = torch.ops.aten


def cut_lookups(
    graph_module: GraphModule, lookups: Sequence[ModuleLookup], tags: IdTags
) -> dict[tuple[int, int], bool]:
    """Put inputs in the lookups' places; returns the columns of leaves that the rest reads itself.

    True: as floating-point numbers.

    Raises SpecError, naming the line, where the rest reads the lengths of bags.
    """
    graph = graph_module.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for number, lookup in enumerate(lookups):
        with graph.inserting_after(last):
            rows = graph.placeholder(f"rows_{number}")
        target = lookup.node
        if lookup.pooling is not None:
            # A bag's node returns its pooled rows with three other tensors.
            for user in list(target.users):
                user.replace_all_uses_with(rows)
        else:
            target.replace_all_uses_with(rows)
        last = rows
    _share_size(graph_module)
    graph.eliminate_dead_code()
    _check_lengths(graph)
    needed: dict[tuple[int, int], bool] = {}
    for node in graph.nodes:
        if node in tags.tags and any(user not in tags.tags for user in node.users):
            is_float = node.meta["val"].dtype.is_floating_point
            for column in tags.columns(node):
                needed[column] = needed.get(column, False) or is_float
    return needed


def _check_lengths(graph: Graph) -> None:
    readers = {node for node in graph.nodes if node.target is BAG_LENGTHS}
    for node in graph.nodes if readers else ():
        if readers & set(node.all_input_nodes):
            readers.add(node)
            if line := source_line(node):
                break
    else:
        line = ""
    if readers:
        raise SpecError(
            f"the module reads the lengths of bags of a KeyedJaggedTensor{line}: pass "
            'histories as [B, L] tensors, lengths as dense inputs, and average by pooling "mean"'
        )


def _share_size(graph_module: GraphModule) -> None:
    """One size of the batch for all nodes that read it from one input or another."""
    graph = graph_module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    batch = inputs[0].meta["val"].shape[0]
    sizes = [
        node
        for node in graph.nodes
        if isinstance(node.meta.get("val"), torch.SymInt)
        and node.target is _ATEN.sym_size.int
        and node.meta["val"].node.expr == batch.node.expr
    ]
    if sizes:
        with graph.inserting_after(inputs[-1]):
            shared = graph.placeholder("batch_size")
        shared.meta = dict(sizes[0].meta)
        for node in sizes:
            node.replace_all_uses_with(shared)
            graph.erase_node(node)


def build_tower(
    graph_module: GraphModule,
    example: Example,
    lookups: Sequence[ModuleLookup],
    placement: Placement,
    spec: ModelSpec,
) -> nn.Module:
    """The tower of a graph that `cut_lookups` has cut; its `forward` takes inputs by name."""
    graph = graph_module.graph
    nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    leaves = list(nodes.values())[: len(example.leaves)]
    taken = TowerInputs(spec.dense.inputs, spec.embedding_width, spec.tower_sequences)
    names = [name for name in taken.names if name != EMBEDDINGS or spec.embedding_width]
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        inputs = {name: graph.placeholder(f"input_{at}") for at, name in enumerate(names)}
        rows = _Rows(graph, inputs, placement, spec)
        for number, lookup in enumerate(lookups):
            node = nodes.get(f"rows_{number}")
            if node is None or not node.users:
                continue
            _replace(node, rows.of(lookup), lookup.value)
        for number, node in enumerate(leaves):
            if node.users:
                _replace(node, _leaf(graph, example, number, inputs, placement), node.meta["val"])
        size = nodes.get("batch_size")
        if size is not None and size.users:
            anchor = inputs[names[0]]
            size.replace_all_uses_with(graph.call_function(_ATEN.sym_size.int, (anchor, 0)))
    for node in nodes.values():
        graph.erase_node(node)
    graph.eliminate_dead_code()
    _bound_indices(graph)
    graph.lint()
    graph_module.recompile()
    graph_module.delete_all_unused_submodules()
    return ProgramTower(_Positional(graph_module), tuple(names), spec.tower.outputs)


def _replace(node: Node, by: Node, value: Any) -> None:
    by.meta.setdefault("val", value)
    node.replace_all_uses_with(by)


def _bound_indices(graph: Graph) -> None:
    """Clamp indices that inputs decide, which would fail a whole batch, to those that exist."""
    computed: set[Node] = set()
    for node in list(graph.nodes):
        is_size = node.target is _ATEN.sym_size.int
        if node.op == "placeholder" or (not is_size and computed & set(node.all_input_nodes)):
            computed.add(node)
        for index, size in _indices(node):
            value = index.meta.get("val")
            if index not in computed or not isinstance(size, int) or value is None:
                continue
            if value.dtype not in (torch.int64, torch.int32):
                continue
            least = -size if node.target is _ATEN.index.Tensor else 0
            with graph.inserting_before(node):
                bounded = graph.call_function(_ATEN.clamp.default, (index, least, size - 1))
            bounded.meta["val"] = value
            node.replace_input_with(index, bounded)
            computed.add(bounded)


def _indices(node: Node) -> Iterator[tuple[Node, Any]]:
    """Indices of a node, each with the size that it must be below."""
    arguments: Any = node.args
    if node.target in (_ATEN.gather.default, _ATEN.index_select.default):
        data, axis, index = arguments[:3]
        yield index, data.meta["val"].shape[axis]
    elif node.target is _ATEN.embedding.default:
        yield arguments[1], len(arguments[0].meta["val"])
    elif node.target is _ATEN.one_hot.default and len(arguments) > 1 and arguments[1] > 0:
        yield arguments[0], arguments[1]
    elif node.target is _ATEN.index.Tensor:
        data, indices = arguments[:2]
        for axis, index in enumerate(indices):
            if isinstance(index, Node):
                yield index, data.meta["val"].shape[axis]


class _Positional(nn.Module):
    def __init__(self, program: GraphModule) -> None:
        super().__init__()
        self.program = program

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.program(*inputs)


class _Rows:
    """Rows of lookups, from the tower's inputs."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Node],
        placement: Placement,
        spec: ModelSpec,
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._placement = placement
        self._columns: dict[tuple[str, str], tuple[int, int]] = {}
        self._widths: dict[str, int] = {}
        for feature in (*spec.features, *spec.sequence_features):
            owner = feature.sequence or EMBEDDINGS
            start = self._widths.get(owner, 0)
            self._widths[owner] = end = start + feature.table.dim
            self._columns[feature.name, feature.table.name] = (start, end)

    def of(self, lookup: ModuleLookup) -> Node:
        """The node of a lookup's rows, in the parameter's dtype."""
        rows, dtype = self._of(lookup), lookup.parameter.dtype
        return rows if dtype is torch.float32 else self._call(_ATEN.to.dtype, rows, dtype)

    def _of(self, lookup: ModuleLookup) -> Node:
        value = lookup.value
        dim = 1 if lookup.squeezed else int(value.shape[-1])
        if lookup.pooling is not None:
            block = self._placement.block_of(lookup.cells[0])
            if block.is_bag and len(lookup.cells) == block.width:
                return self._slice(EMBEDDINGS, 1, *self._place(lookup, lookup.cells[0], block))
            if lookup.padding is not None:
                raise TowerError(
                    f"table {table_path(lookup.weight)!r}: a bag with padding_idx whose ids are "
                    f"read elsewhere too, or of which it is the maximum{source_line(lookup.node)}: "
                    "look rows up by nn.Embedding, and mask them"
                )
            return self._pooled(lookup, self._joined(lookup, dim))
        sizes = list(value.shape if lookup.squeezed else value.shape[:-1])
        rest = [int(size) for at, size in enumerate(sizes) if at != lookup.axis]
        shape = rest if lookup.squeezed else [*rest, dim]
        runs = self._runs(lookup)
        if len(runs) == 1 and not self._placement.block_of(runs[0][0]).is_sequence:
            rows = self._columns_of(lookup, runs[0], dim)
            rows = rows if len(shape) == 1 else self._reshaped(rows, shape)
        else:
            rows = self._joined(lookup, dim)
            rows = rows if shape == [len(lookup.cells), dim] else self._reshaped(rows, shape)
        if lookup.axis:
            rows = self._call(_ATEN.movedim.int, rows, 0, lookup.axis)
        return rows

    def _joined(self, lookup: ModuleLookup, dim: int) -> Node:
        """Fp32 `[B, ids, dim]`: rows of all ids of a sample."""
        parts = [self._run(lookup, run, dim) for run in self._runs(lookup)]
        return parts[0] if len(parts) == 1 else self._call(_ATEN.cat.default, parts, 1)

    def _runs(self, lookup: ModuleLookup) -> list[list[Cell]]:
        """Ids that lie next to each other in one input of the tower."""
        runs: list[list[Cell]] = []
        for cell in lookup.cells:
            if runs and self._follows(lookup, runs[-1][-1], cell):
                runs[-1].append(cell)
            else:
                runs.append([cell])
        return runs

    def _follows(self, lookup: ModuleLookup, cell: Cell, other: Cell) -> bool:
        block, next_block = self._placement.block_of(cell), self._placement.block_of(other)
        if block.is_sequence or next_block.is_sequence:
            same = block.name == next_block.name and cell.steps == other.steps
            return same and other.column == cell.column + 1
        ends = self._place(lookup, cell, block)[1]
        return self._place(lookup, other, next_block)[0] == ends

    def _place(self, lookup: ModuleLookup, cell: Cell, block: Block) -> tuple[int, int]:
        table = self._placement.table_of[table_key(lookup, block, cell)]
        return self._columns[block.name, table]

    def _run(self, lookup: ModuleLookup, run: list[Cell], dim: int) -> Node:
        block = self._placement.block_of(run[0])
        start, end = self._place(lookup, run[0], block)
        if block.is_sequence:
            rows = self._slice(block.sequence, 2, start, end)
            first, last = run[0].column - block.first, run[-1].column + 1 - block.first
            if (first, last) != (0, block.width):
                rows = self._call(_ATEN.slice.Tensor, rows, 1, first, last)
            return rows
        return self._reshaped(self._columns_of(lookup, run, dim), [len(run), dim])

    def _columns_of(self, lookup: ModuleLookup, run: list[Cell], dim: int) -> Node:
        """Fp32 `[B, ids * dim]`: rows of neighbouring pooled features."""
        start, _ = self._place(lookup, run[0], self._placement.block_of(run[0]))
        return self._slice(EMBEDDINGS, 1, start, start + dim * len(run))

    def _reshaped(self, node: Node, sizes: Sequence[int]) -> Node:
        return self._call(_ATEN.reshape.default, node, [-1, *sizes])

    def _slice(self, name: str, axis: int, start: int, end: int) -> Node:
        if (start, end) == (0, self._widths[name]):
            return self._inputs[name]
        return self._call(_ATEN.slice.Tensor, self._inputs[name], axis, start, end)

    def _pooled(self, lookup: ModuleLookup, rows: Node) -> Node:
        match lookup.pooling:
            case "sum":
                return self._call(_ATEN.sum.dim_IntList, rows, [1])
            case "mean":
                return self._call(_ATEN.mean.dim, rows, [1])
            case "max":
                return self._call(_ATEN.amax.default, rows, [1])
        raise InternalError(f"a lookup is pooled by {lookup.pooling}")

    def _call(self, target: Any, *arguments: Any) -> Node:
        return self._graph.call_function(target, arguments)


def _leaf(
    graph: Graph,
    example: Example,
    number: int,
    inputs: Mapping[str, Node],
    placement: Placement,
) -> Node:
    """A leaf as the module took it, from the tower's inputs; zeros where nothing reads it."""
    leaf, end, parts = example.leaves[number], 0, []
    anchor = next(iter(inputs.values()))

    def fill(width: int) -> Node:
        size = graph.call_function(_ATEN.sym_size.int, (anchor, 0))
        kind: dict[str, Any] = {"dtype": leaf.tensor.dtype}
        return graph.call_function(_ATEN.zeros.default, ([size, width],), kind)

    own = [block for block in placement.blocks if block.leaf == number]
    dense = {block.first for block in own if block.is_dense}
    for block in own:
        # Numbers say ids too.
        if not block.is_dense and block.first in dense:
            continue
        if block.first > end:
            parts.append(fill(block.first - end))
        if block.is_dense or block.has_ids:
            node = inputs[block.name if block.is_dense else block.name + IDS]
            parts.append(_cast(graph, node, leaf.tensor.dtype, is_dense=block.is_dense))
        else:
            parts.append(fill(block.width))
        end = block.last
    if end < leaf.width:
        parts.append(fill(leaf.width - end))
    joined = parts[0]
    if len(parts) > 1:
        joined = graph.call_function(_ATEN.cat.default, (parts, 1))
    sizes = [int(size) for size in leaf.tensor.shape[1:]]
    if sizes == [leaf.width]:
        return joined
    return graph.call_function(_ATEN.reshape.default, (joined, [-1, *sizes]))


def _cast(graph: Graph, node: Node, dtype: torch.dtype, *, is_dense: bool) -> Node:
    """A dense input, or ids, in the dtype of the module's input."""
    if dtype is torch.bool:
        return graph.call_function(_ATEN.ne.Scalar, (node, 0))
    if dtype is (torch.float32 if is_dense else torch.int64):
        return node
    return graph.call_function(_ATEN.to.dtype, (node, dtype))
