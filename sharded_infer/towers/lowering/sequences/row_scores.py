"""The last operators of a score as steps on rows, whose one column is dropped behind them.

    sum(x, 1)                  ->  squeeze(sum(x, 1, keepdim=True), 1)
    sigmoid(squeeze(x, 1))     ->  squeeze(sigmoid(x), 1)

A row step has rows and columns: so the pass that computes a row also ends its score.
"""

from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.tensor_kinds import Kind

_aten = torch.ops.aten
_BY_NUMBER: Final = (_aten.sigmoid.default, _aten.relu.default, _aten.silu.default)


def keep_columns(program: GraphModule, kinds: dict[Node, Kind]) -> int:
    """Drops a score's column behind its last operators, in place; returns the operators moved.

    `kinds` are those of a run.
    """
    graph = program.graph
    # The node with one column, by the node that dropped it.
    columns: dict[Node, Node] = {}
    made = 0
    for node in list(graph.nodes):
        if node.op != "call_function" or node.kwargs or not isinstance(node.args[0], Node):
            continue
        source = node.args[0]
        rank = len(kinds[source][1]) if source in kinds else 0
        with graph.inserting_before(node):
            if node.target is _aten.sum.dim_IntList and _is_last(node.args[1:], rank):
                kept = graph.call_function(node.target, (source, [-1], True))
            elif node.target in _BY_NUMBER and source in columns:
                kept = graph.call_function(node.target, (columns[source],))
            else:
                if _drops(node, kinds):
                    columns[node] = source
                continue
            dropped = graph.call_function(_aten.squeeze.dim, (kept, -1))
        columns[dropped] = kept
        node.replace_all_uses_with(dropped)
        made += 1
    if made:
        graph.eliminate_dead_code()
        program.recompile()
    return made


def _is_last(options: tuple[Any, ...], rank: int) -> bool:
    """True if a sum is over the last of several axes, and drops it."""
    axes, *keeps = options
    return rank > 1 and axes in ([-1], [rank - 1]) and keeps in ([], [False])


def _drops(node: Node, kinds: dict[Node, Kind]) -> bool:
    if node.target is not _aten.squeeze.dim or node.args[0] not in kinds:
        return False
    shape = kinds[node.args[0]][1]  # type: ignore[index]
    return len(shape) > 1 and shape[-1] == 1 and node.args[1] in (-1, len(shape) - 1)
