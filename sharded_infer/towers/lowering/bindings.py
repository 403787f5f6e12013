"""Functions in the place of operators and modules, with less overhead per call.

`torch.ops` takes one to two of a small operator's few microseconds for its look-up, and a module as
long for its hooks.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.fx import GraphModule

_aten = torch.ops.aten


# With the same arguments.
_FUNCTIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    **{
        getattr(getattr(_aten, name), kind): getattr(torch, name)
        for kind, names in {
            "Tensor": ("add", "sub", "mul", "div", "ge", "gt", "le", "lt", "eq", "ne"),
            "Scalar": ("ge", "gt", "le", "lt", "eq", "ne", "masked_fill"),
            "default": (
                *("sigmoid", "relu", "tanh", "exp", "log", "sqrt", "abs", "neg", "floor"),
                *("layer_norm", "matmul", "bmm", "cat", "chunk", "clamp", "index_select"),
                *("embedding", "gather", "reshape", "unsqueeze"),
            ),
            "dim": ("squeeze",),
            "int": ("softmax", "transpose"),
            "dim_IntList": ("sum",),
            "using_ints": ("flatten",),
            "self": ("where",),
        }.items()
        for name in names
    },
    _aten.silu.default: torch.nn.functional.silu,
    _aten.mean.dim: torch.mean,
}


def call_functions(program: GraphModule) -> int:
    """Replaces modules, and operators that have an equal function, in place; returns their number.

    The program keeps the modules, which hold its weights.
    """
    made = 0
    for node in program.graph.nodes:
        if node.op == "call_module":
            node.op, node.target = "call_function", program.get_submodule(str(node.target)).forward
        elif node.op != "call_function" or node.kwargs:
            continue
        elif node.target is _aten.slice.Tensor and node.args[2:] == (-1, sys.maxsize):
            node.target, node.args = torch.narrow, (*node.args[:2], -1, 1)
        elif node.target in _FUNCTIONS:
            node.target = _FUNCTIONS[node.target]
        else:
            continue
        made += 1
    if made:
        program.recompile()
    return made
