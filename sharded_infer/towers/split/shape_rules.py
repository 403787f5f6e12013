"""Operators that move, choose, sum or change positions of a value that is part by request.

A rule returns None where the value must be joined first, with a row for each pair.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch
from torch.fx import Node

from sharded_infer.towers.lowering.rewriting import RESHAPES
from sharded_infer.towers.program.operators import Operator
from sharded_infer.towers.split.parts import Known, Parts, Run, Value, joined_runs, positions_of
from sharded_infer.towers.split.split_graphs import SplitGraphs

Rule: TypeAlias = Callable[[SplitGraphs, Node], Known | None]

_aten = torch.ops.aten
_NO_END: Final = 2**63 - 1
_SLICE_DEFAULTS: Final = (None, 0, None, None, 1)


def _axis(node: object, samples: tuple[int, ...] | None) -> int | None:
    """An axis counted from the front; None for the samples'."""
    if not isinstance(node, int) or samples is None:
        return None
    axis = node + len(samples) + 1 if node < 0 else node
    return axis if axis >= 1 else None


def _cat(graphs: SplitGraphs, node: Node) -> Known | None:
    dim = _axis((*node.args, 0)[1], graphs.sizes.shape(node))
    sources = node.args[0]
    if dim is None or not isinstance(sources, list | tuple) or graphs.sizes.grows_along(node, dim):
        return None
    runs: list[Run] = []
    nodes: dict[bool, list[Node]] = {True: [], False: []}
    for source in sources:
        if not isinstance(source, Node):
            return None
        known, shape = graphs.known[source], graphs.sizes.shape(source)
        if isinstance(known, Parts) and known.dim == dim:
            runs += known.runs
            found = {True: known.request, False: known.pair}
        elif isinstance(known, Value) and shape is not None:
            runs.append(Run(known.by_request, shape[dim - 1]))
            found = {known.by_request: known.node}
        else:
            return None
        dtype = graphs.sizes.dtype(node)
        for flag, one in found.items():
            alike = graphs.sizes.dtype(source) is dtype
            nodes[flag].append(one if alike else graphs.call(flag, _aten.to.dtype, one, dtype))
    if not nodes[True] or not nodes[False]:
        return None
    request, pair = (
        made[0] if len(made) == 1 else graphs.call(flag, _aten.cat.default, made, dim)
        for flag, made in nodes.items()
    )
    return Parts(dim, request, pair, joined_runs(runs))


def _taken(graphs: SplitGraphs, parts: Parts, start: int, stop: int) -> Known:
    """Positions `[start, stop)` of the axis."""
    kept: list[Run] = []
    bounds: dict[bool, list[int]] = {}
    places = {True: 0, False: 0}
    begin = 0
    for by_request, size in parts.runs:
        low, high = max(start, begin), min(stop, begin + size)
        if low < high:
            place = places[by_request] + low - begin
            first = bounds.setdefault(by_request, [place, place])
            first[1] = place + high - low
            kept.append(Run(by_request, high - low))
        places[by_request] += size
        begin += size
    made = {
        flag: graphs.call(flag, _aten.slice.Tensor, parts.of(flag), parts.dim, *of_one)
        for flag, of_one in bounds.items()
    }
    if len(made) == 1:
        [(flag, one)] = made.items()
        return Value(flag, one)
    return Parts(parts.dim, made[True], made[False], tuple(kept))


def _width(parts: Parts) -> int:
    return sum(size for _, size in parts.runs)


def _slice(graphs: SplitGraphs, node: Node) -> Known | None:
    given = [*node.args, *_SLICE_DEFAULTS[len(node.args) :]]
    source, dim, start, stop, step = given
    parts = graphs.parts(source)
    if parts is None or step != 1 or dim != parts.dim:
        return parts if dim == 0 and start in (None, 0) and stop == _NO_END else None
    width = _width(parts)
    if not isinstance(start, int | None) or not isinstance(stop, int | None):
        return None
    begin, end, _ = slice(start, stop).indices(width)
    return _taken(graphs, parts, begin, end) if begin < end else None


def _split(graphs: SplitGraphs, node: Node) -> Known | None:
    source, sizes, dim = (*node.args, 0)[:3]
    parts = graphs.parts(source)
    if parts is None or dim != parts.dim:
        return None
    if isinstance(sizes, int):
        width = _width(parts)
        sizes = [min(sizes, width - start) for start in range(0, width, sizes)]
    if not isinstance(sizes, list | tuple) or not all(isinstance(s, int) and s > 0 for s in sizes):
        return None
    made, start = [], 0
    for size in sizes:
        made.append(_taken(graphs, parts, start, start + size))
        start += size
    return tuple(made)


def _getitem(graphs: SplitGraphs, node: Node) -> Known | None:
    source, index = node.args
    known = graphs.known.get(source) if isinstance(source, Node) else None
    return known[index] if isinstance(known, tuple) else None  # type: ignore[index]


def _reshape(graphs: SplitGraphs, node: Node) -> Known | None:
    """The samples' axis stays; the next one, which the parts lie along, is reshaped."""
    parts = graphs.parts(node.args[0])
    before = graphs.sizes.shape(node.args[0]) if isinstance(node.args[0], Node) else None
    after = graphs.sizes.shape(node)
    if parts is None or not before or not after or parts.dim != 1 or graphs.sizes.grows(node):
        return None
    inner, made = math.prod(before[1:]), math.prod(after[1:])
    if not made or any(size * inner % made for _, size in parts.runs):
        return None
    runs = tuple(Run(flag, size * inner // made) for flag, size in parts.runs)

    def cut(by_request: bool) -> Node:
        sizes = [-1, len(positions_of(runs, by_request)), *after[1:]]
        return graphs.call(by_request, _aten.reshape.default, parts.of(by_request), sizes)

    return Parts(1, cut(True), cut(False), runs)


def _reduce(graphs: SplitGraphs, node: Node) -> Known | None:
    """Sums and means over the axis of the parts, or over a later one."""
    parts = graphs.parts(node.args[0])
    shape = graphs.sizes.shape(node.args[0]) if isinstance(node.args[0], Node) else None
    dims, keeps = (*node.args[1:], None, False)[:2]
    if parts is None or node.kwargs or len(node.args) > 3 or not isinstance(dims, list | tuple):
        return None
    axes = [_axis(dim, shape) for dim in dims]
    later = all(axis is not None and axis > parts.dim for axis in axes)
    if not later and axes != [parts.dim]:
        return None
    target = node.target if later else _aten.sum.dim_IntList
    request, pair = (
        graphs.call(flag, target, parts.of(flag), dims, keeps) for flag in (True, False)
    )
    if later:
        return Parts(parts.dim, request, pair, parts.runs)
    total = graphs.call(False, _aten.add.Tensor, pair, graphs.rows(request))
    if node.target is _aten.mean.dim:
        total = graphs.call(False, _aten.div.Scalar, total, _width(parts))
    return Value(False, total)


def _elementwise(graphs: SplitGraphs, node: Node) -> Known | None:
    """Operators on one value, or on several that are by request in the same places."""
    parts = {source: graphs.parts(source) for source in node.all_input_nodes}
    found = [one for one in parts.values() if one is not None]
    places = {(one.dim, one.runs) for one in found}
    if len(found) != len(parts) or len(places) != 1:
        return None
    [(dim, runs)] = places
    request, pair = (
        graphs.like(
            flag, node, {source: one.of(flag) for source, one in zip(parts, found, strict=True)}
        )
        for flag in (True, False)
    )
    return Parts(dim, request, pair, runs)


_ELEMENTWISE: Final[tuple[Operator, ...]] = (
    _aten.relu.default, _aten.sigmoid.default, _aten.tanh.default, _aten.gelu.default,
    _aten.silu.default, _aten.leaky_relu.default, _aten.neg.default, _aten.abs.default,
    _aten.square.default, _aten.exp.default, _aten.log1p.default, _aten.sqrt.default,
    _aten.pow.Tensor_Scalar, _aten.clamp.default, _aten.clone.default, _aten.contiguous.default,
    _aten.detach.default, _aten.alias.default, _aten.dropout.default, _aten.to.dtype,
    _aten._to_copy.default, _aten.add.Scalar, _aten.sub.Scalar, _aten.mul.Scalar,
    _aten.div.Scalar, _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor,
)  # fmt: skip

SHAPE_RULES: Final[Mapping[Operator, Rule]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(RESHAPES, _reshape),
    _aten.cat.default: _cat,
    _aten.concat.default: _cat,
    _aten.slice.Tensor: _slice,
    _aten.split.Tensor: _split,
    _aten.split.sizes: _split,
    _aten.split_with_sizes.default: _split,
    operator.getitem: _getitem,
    _aten.sum.dim_IntList: _reduce,
    _aten.mean.dim: _reduce,
}
