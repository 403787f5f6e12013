"""Lookups of an exported module: rows of its parameters, by ids of its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sharded_infer.errors import TowerError
from sharded_infer.importing.modules.exported import source_line
from sharded_infer.importing.modules.id_tags import Cell, IdTags

_ATEN = torch.ops.aten
_BAGS = (_ATEN.embedding_bag.padding_idx, _ATEN.embedding_bag.default, _ATEN._embedding_bag.default)
_BAG = (
    *("weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse"),
    *("per_sample_weights", "include_last_offset"),
)
# Parameters that are no larger may stay in the tower, whatever their indices are.
_MOST_TOWER_ROWS = 2**16
_BAGS_TAKEN = (
    "; bags are [B, L], without weights and offsets, or keys of a KeyedJaggedTensor in its own "
    "order, neither permuted nor weighted"
)
COMPUTED = "ids that the module computes"


@dataclass(frozen=True, slots=True)
class ModuleLookup:
    """Rows of one parameter for each id of a sample.

    Attributes:
        weight: the parameter's path in the module.
        parameter: fp32 or another float, `[rows, dim]` or `[rows]`.
        cells: where each id of a sample comes from, in order.
        axis: the dimension of samples among the ids.
        pooling: of a bag; None: the rows as they are.
        padding: the row whose id a bag leaves out, or that training leaves as it began; None: none.
    """

    node: Node
    weight: str
    parameter: Tensor
    cells: tuple[Cell, ...]
    axis: int = 0
    pooling: str | None = None
    padding: int | None = None

    @property
    def value(self) -> Any:
        """The rows as torch traced them: shape and dtype."""
        value = self.node.meta["val"]
        return value if self.pooling is None else value[0]

    @property
    def squeezed(self) -> bool:
        """True if the parameter is `[rows]`: its numbers have no last dimension."""
        return self.parameter.dim() == 1


@dataclass(frozen=True, slots=True)
class TowerLookup:
    """Rows of a parameter that stays in the tower, and why."""

    weight: str
    rows: int
    dim: int
    reason: str
    line: str


def find_lookups(
    graph_module: GraphModule, tags: IdTags
) -> tuple[list[ModuleLookup], list[TowerLookup]]:
    """All lookups by ids of inputs, and those that stay in the tower.

    Raises TowerError, naming the line, where ids of a large table are computed by anything but
    constants.
    """
    cut: list[ModuleLookup] = []
    left: list[TowerLookup] = []
    for node in graph_module.graph.nodes:
        parts = _parts(node)
        if parts is None:
            continue
        parameter, ids, pooling = parts
        weight = tags.computed.get(parameter, parameter_of(graph_module, parameter))
        if weight is None or not weight.is_floating_point() or weight.dim() > 2:
            continue
        path = _path(parameter)
        rows, dim = len(weight), 1 if weight.dim() == 1 else weight.shape[1]
        line = source_line(node)
        if ids not in tags.depends:
            left.append(
                TowerLookup(table_path(path), rows, dim, "positions, no ids of an input", line)
            )
            continue
        origin = tags.cells(ids)
        if origin is not None and _fits(node, ids, pooling, origin[1], tags):
            cells, axis = origin
            padding = _padding(node, rows)
            cut.append(
                ModuleLookup(node, path, weight.detach(), tuple(cells), axis, pooling, padding)
            )
            continue
        if rows > _MOST_TOWER_ROWS or pooling is not None:
            raise TowerError(
                f"table {table_path(path)!r} [{rows}, {dim}]: its ids are computed from the inputs "
                f"by more than casts, slices and arithmetic by constants{line}; compute them "
                "before the module is called, or pass them as an input"
                + ("" if pooling is None else _BAGS_TAKEN)
            )
        left.append(TowerLookup(table_path(path), rows, dim, COMPUTED, line))
    return cut, left


def table_path(weight: str) -> str:
    """Path of a parameter in the user's module, without `.weight`."""
    return weight.removeprefix("module.").removesuffix(".weight")


def parameter_of(graph_module: GraphModule, node: Node) -> Tensor | None:
    """The parameter or buffer that a node reads; None for other nodes."""
    if node.op != "get_attr":
        return None
    value: object = graph_module
    for step in str(node.target).split("."):
        value = getattr(value, step)
    return value if isinstance(value, Tensor) else None


def _path(node: Node) -> str:
    """Path of a parameter; for a computed one, that of the first it is made of, and its name."""
    if node.op == "get_attr":
        return str(node.target)
    source = node
    while source.op != "get_attr" and source.all_input_nodes:
        source = source.all_input_nodes[0]
    return f"{source.target if source.op == 'get_attr' else 'module'}.{node.name}"


def _parts(node: Node) -> tuple[Node, Node, str | None] | None:
    """Parameter, ids and pooling of a node that may look rows up."""
    if node.op != "call_function":
        return None
    arguments = node.args
    if node.target is _ATEN.embedding.default:
        return arguments[0], arguments[1], None  # type: ignore[return-value]
    if node.target in _BAGS:
        mode = arguments[4] if len(arguments) > 4 else node.kwargs.get("mode", 0)
        return arguments[0], arguments[1], ("sum", "mean", "max")[mode]  # type: ignore[return-value, index]
    if node.target is _ATEN.index_select.default and arguments[1] == 0:
        return arguments[0], arguments[2], None  # type: ignore[return-value]
    if node.target is _ATEN.index.Tensor:
        indices = arguments[1]
        if isinstance(indices, list | tuple) and len(indices) == 1 and isinstance(indices[0], Node):
            return arguments[0], indices[0], None  # type: ignore[return-value]
    return None


def _padding(node: Node, rows: int) -> int | None:
    if node.target not in (_ATEN.embedding.default, *_BAGS):
        return None
    place = 2 if node.target is _ATEN.embedding.default else 8
    padding: Any = node.args[place] if len(node.args) > place else node.kwargs.get("padding_idx")
    if padding is None or (node.target is _ATEN.embedding.default and padding < 0):
        return None
    return int(padding) % rows


def _fits(node: Node, ids: Node, pooling: str | None, axis: int, tags: IdTags) -> bool:
    """True for rows of each sample, or one bag of equally many ids, without weights, a sample."""
    if pooling is None:
        sizes = list(ids.meta["val"].shape)
        return not any(isinstance(size, torch.SymInt) for size in sizes[:axis] + sizes[axis + 1 :])
    arguments: Mapping[str, Any] = dict(zip(_BAG, node.args, strict=False)) | dict(node.kwargs)
    count, samples = tags.tags[ids].numel(), tags.samples
    has_end = bool(arguments.get("include_last_offset"))
    expected = torch.arange(0, count + has_end, count // samples)
    return (
        arguments.get("per_sample_weights") is None
        and arguments["offsets"] not in tags.depends
        and torch.equal(tags.bag_starts[node], expected)
    )
