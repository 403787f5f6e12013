"""The origin of every id in an exported module: an input, a column, and arithmetic by constants.

The module runs once on its example. Beside each integer tensor that holds inputs' numbers goes a
tensor of tags of the same shape, on which the operators that only move numbers run too:

    tag = cell * B + sample        cell: an input's column, and the steps that its ids went through
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from sharded_infer.importing.modules.exported import operator_name
from sharded_infer.specs.id_steps import IdStep

_CASTS = {"to", "_to_copy", "type_as"}
# Operators whose result holds its first argument's numbers, moved.
_MOVES = {
    "alias", "broadcast_to", "cat", "chunk", "clone", "contiguous", "detach", "diagonal", "expand",
    "expand_as", "flatten", "flip", "getitem", "hstack", "index", "index_select",
    "lift_fresh_copy", "movedim", "narrow", "permute", "repeat", "reshape", "roll", "select",
    "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "tile", "transpose", "unbind",
    "unflatten", "unfold", "unsqueeze", "view", "view_as", "_unsafe_view",
}  # fmt: skip
_LOOKUPS = {"embedding", "embedding_bag", "_embedding_bag", "index", "index_select"}


class Cell(NamedTuple):
    """A number of each sample: of a leaf's column, after `steps`."""

    leaf: int
    column: int
    steps: tuple[IdStep, ...] = ()


class IdTags(Interpreter):
    """Tags of a graph's nodes.

    Attributes:
        tags: int64, of the node's shape on the example.
        samples: B of the example.
        bag_starts: offsets of each `embedding_bag` on the example.
        computed: rows `[rows, dim]` of lookups in what is computed from parameters alone.
    """

    def __init__(self, graph_module: GraphModule, leaves: tuple[Tensor, ...]) -> None:
        super().__init__(graph_module)
        self._leaves = leaves
        self.samples = len(leaves[0])
        self._cells: dict[Cell, int] = {}
        self._names: list[Cell] = []
        self.tags: dict[Node, Any] = {}
        # Nodes whose values depend on the inputs' values, not their sizes alone.
        self.depends: set[Node] = set()
        self.bag_starts: dict[Node, Tensor] = {}
        self.computed: dict[Node, Tensor] = {}
        self._placeholders = 0
        self._dtypes: dict[Node, torch.dtype] = {}
        with torch.no_grad():
            self.run(*leaves)

    def run_node(self, n: Node) -> Any:
        """Run a node, and find its tags."""
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self._dtypes[n] = value.dtype
        if "embedding_bag" in operator_name(n):
            self.bag_starts[n] = self.fetch_args_kwargs_from_env(n)[0][2]
        rows: Any = n.args[0] if n.args else None
        is_lookup = operator_name(n) in _LOOKUPS and isinstance(rows, Node)
        if is_lookup and rows.op == "call_function" and rows not in self.depends:
            self.computed[rows] = self.env[rows]
        if n.op == "placeholder":
            self.depends.add(n)
            self.tags[n] = self._of_leaf(self._placeholders)
            self._placeholders += 1
        elif n.op == "call_function" and not _is_size(n) and self.depends & set(n.all_input_nodes):
            self.depends.add(n)
            tag = self._tag(n, value)
            if tag is not None:
                self.tags[n] = tag
        return value

    def cells(self, node: Node) -> tuple[list[Cell], int] | None:
        """The cells of a sample of a node's numbers, in order, and the dimension of samples.

        None if the numbers have other origins, or samples lie between each other.
        """
        tags = self.tags.get(node)
        if not isinstance(tags, Tensor) or tags.numel() % self.samples:
            return None
        expected = torch.arange(self.samples)[:, None]
        for axis in range(max(1, tags.dim())):
            by_sample = tags.movedim(axis, 0).reshape(self.samples, -1)
            samples, cells = by_sample % self.samples, by_sample // self.samples
            if bool((samples == expected).all() and (cells == cells[0]).all()):
                return [self._names[cell] for cell in cells[0].tolist()], axis
        return None

    def columns(self, node: Node) -> set[tuple[int, int]]:
        """Leaves and columns that a tagged node holds numbers of."""
        tags = self.tags[node]
        parts = tags if isinstance(tags, list | tuple) else [tags]
        numbers = {cell for part in parts for cell in (part // self.samples).unique().tolist()}
        return {(self._names[cell].leaf, self._names[cell].column) for cell in numbers}

    def _of_leaf(self, leaf: int) -> Tensor:
        tensor = self._leaves[leaf]
        width = tensor[0].numel()
        cells = torch.tensor([self._number(Cell(leaf, column)) for column in range(width)])
        tags = cells * self.samples + torch.arange(self.samples)[:, None]
        return tags.reshape(tensor.shape)

    def _number(self, cell: Cell) -> int:
        if cell not in self._cells:
            self._cells[cell] = len(self._names)
            self._names.append(cell)
        return self._cells[cell]

    def _tag(self, node: Node, value: Any) -> Any:
        name = operator_name(node)
        first = node.args[0] if node.args else None
        if name in _CASTS:
            source: Any = first
            return self.tags.get(source) if _keeps(self._dtypes[source], value.dtype) else None
        if name in _MOVES:
            return self._moved(node, first)
        if (
            isinstance(value, Tensor)
            and not value.is_floating_point()
            and value.dtype is not torch.bool
        ):
            return self._computed(node, name, value)
        return None

    def _moved(self, node: Node, first: Any) -> Any:
        moved = first if isinstance(first, list | tuple) else [first]
        if not all(isinstance(part, Node) and part in self.tags for part in moved):
            return None
        # Indices that are values of inputs choose what a request says.
        if any(part in self.depends for part in node.all_input_nodes if part not in moved):
            return None
        arguments, named = self.fetch_args_kwargs_from_env(node)
        tags = [self.tags[part] for part in moved]
        source = tags if isinstance(first, list | tuple) else tags[0]
        named = {name: value for name, value in named.items() if name != "dtype"}
        return node.target(source, *arguments[1:], **named)  # type: ignore[operator]

    def _computed(self, node: Node, name: str, value: Tensor) -> Tensor | None:
        arguments, named = self.fetch_args_kwargs_from_env(node)
        tagged = [arg for arg in node.args if isinstance(arg, Node) and arg in self.tags]
        others = [arg for arg in node.all_input_nodes if arg in self.depends and arg not in tagged]
        if len(tagged) != 1 or others or not isinstance(self.tags[tagged[0]], Tensor):
            return None
        at = node.args.index(tagged[0])
        steps = _STEPS.get(name)
        # Products of 32 bits wrap around elsewhere than those of 64.
        wraps = name == "mul" and value.dtype is not torch.int64
        sizes = any(isinstance(arg, torch.SymInt) for arg in _values(node))
        if steps is None or wraps or sizes or (at and name not in _COMMUTE):
            return None
        operands = [arg for number, arg in enumerate(arguments) if number != at]
        own = steps(operands, named)
        tags: Tensor = self.tags[tagged[0]].expand(value.shape)
        for op, number in own or ():
            tags = self._stepped(tags, op, number)
        return tags if own else None

    def _stepped(self, tags: Tensor, op: str, number: Any) -> Tensor:
        numbers = torch.as_tensor(number, dtype=torch.int64).expand(tags.shape)
        samples, cells = tags % self.samples, tags // self.samples
        pairs = torch.stack([cells.flatten(), numbers.flatten()], 1)
        distinct, places = torch.unique(pairs, dim=0, return_inverse=True)
        renamed = torch.tensor(
            [self._number(_after(self._names[cell], op, by)) for cell, by in distinct.tolist()]
        )
        return renamed[places].reshape(tags.shape) * self.samples + samples


def _values(node: Node) -> list[Any]:
    return [source.meta.get("val") for source in node.all_input_nodes]


def _after(cell: Cell, op: str, number: int) -> Cell:
    if (op, number) in (("add", 0), ("multiply", 1), ("divide", 1)):
        return cell
    if op == "add" and cell.steps and cell.steps[-1][0] == "add":
        both = cell.steps[-1][1] + number
        before: IdStep = ("add", (both + 2**63) % 2**64 - 2**63)
        shorter = cell._replace(steps=cell.steps[:-1])
        return _after(shorter, *before)
    return cell._replace(steps=(*cell.steps, (op, number)))  # type: ignore[arg-type]


def _keeps(source: torch.dtype, dtype: torch.dtype) -> bool:
    """True if a cast keeps every id: float columns may hold ids, which are whole numbers."""
    if dtype.is_floating_point:
        return source is dtype or (source, dtype) == (torch.float32, torch.float64)
    return dtype in (torch.int64, torch.int32) or source is dtype


_Steps = list[tuple[str, Any]] | None


def _whole(number: Any) -> bool:
    if isinstance(number, Tensor):
        return not number.is_floating_point() or bool((number == number.round()).all())
    return isinstance(number, int) or (isinstance(number, float) and number.is_integer())


def _simple(
    op: str, sign: int = 1, least: int | None = None
) -> Callable[[list[Any], Mapping[str, Any]], _Steps]:
    def steps(operands: list[Any], named: Mapping[str, Any]) -> _Steps:
        number = operands[0]
        if named.get("alpha", 1) != 1 or len(operands) != 1 or not _whole(number):
            return None
        if least is not None and int(torch.as_tensor(number).min()) < least:
            return None
        return [(op, torch.as_tensor(number).long() * sign)]

    return steps


def _clamp(operands: list[Any], named: Mapping[str, Any]) -> _Steps:
    bounds = dict(zip(("min", "max"), operands, strict=False)) | dict(named)
    steps = [("at_least", bounds.get("min")), ("at_most", bounds.get("max"))]
    chosen = [(op, number) for op, number in steps if number is not None]
    return chosen if all(_whole(number) for _, number in chosen) else None


def _divide(operands: list[Any], named: Mapping[str, Any]) -> _Steps:
    is_floor = named.get("rounding_mode", "floor") == "floor"
    return _simple("divide", least=1)(operands, {}) if is_floor else None


_STEPS: dict[str, Callable[[list[Any], Mapping[str, Any]], _Steps]] = {
    "add": _simple("add"),
    "sub": _simple("add", -1),
    "mul": _simple("multiply"),
    "remainder": _simple("remainder", least=1),
    "floor_divide": _divide,
    "div": _divide,
    "clamp": _clamp,
    "clamp_min": _simple("at_least"),
    "clamp_max": _simple("at_most"),
    "maximum": _simple("at_least"),
    "minimum": _simple("at_most"),
    "relu": lambda operands, named: [("at_least", 0)],
}
_COMMUTE = {"add", "mul", "maximum", "minimum"}


def _is_size(node: Node) -> bool:
    return operator_name(node) in ("sym_size", "sym_numel")
