"""Mixed precision on a tower's graph: matrix products in a low precision, all else unchanged.

Automatic mixed precision (Micikevicius et al. 2018, "Mixed Precision Training"), applied once,
ahead of time. Operators that sum many numbers or have a steep derivative run in fp32. So do the
last layers, whose rounding nothing averages out.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import Target, map_aggregate

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.operators import (
    ASSERTIONS,
    KEEPS_PRECISION,
    MATRIX_PRODUCTS,
    SYMBOLIC_SIZE,
)

# Under this name torch.export's modules check the shapes of their inputs.
_EXPORT_GUARDS = "_guards_fn"


def lower_precision(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A module that computes the inner matrix products of `module` in `dtype`.

    Args:
        module: a torch.fx GraphModule of aten operators, such as `ExportedProgram.module()`; not
            changed.
        dtype: a floating-point dtype narrower than fp32.

    Returns:
        A module of the same inputs, with fp32 outputs. A matrix product from which another can be
            reached takes its inputs in `dtype`. Weights that only such products use are stored in
            it. Operators in KEEPS_PRECISION follow type promotion. All others, and the last
            products, get fp32. Exporting the module records the casts in its graph.

    Raises:
        TowerError: `module` is no such graph, or a weight is beyond `dtype`'s range.
    """
    if not isinstance(module, GraphModule):
        raise TowerError(f"expected a torch.fx.GraphModule, got {type(module).__name__}")
    lowered = copy_program(module)
    products = frozenset(node.name for node in inner_products(lowered.graph))
    _store_weights(lowered, products, dtype)
    return _MixedPrecision(lowered, products, dtype)


def copy_program(module: GraphModule) -> GraphModule:
    """The same graph over the same tensors, without export's checks of shapes and dtypes.

    The dtypes are about to change, and the next export writes its own checks.
    """
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if node.target == _EXPORT_GUARDS or f"torch.ops.{node.target}" in ASSERTIONS:
            graph.erase_node(node)
    return GraphModule(module, graph)


def inner_products(graph: Graph) -> list[Node]:
    """Matrix products whose values reach another matrix product."""
    reaching: set[Node] = set()
    for node in reversed(graph.nodes):
        # Sizes carry no values.
        users = [user for user in node.users if user.target not in SYMBOLIC_SIZE]
        if any(user.target in MATRIX_PRODUCTS or user in reaching for user in users):
            reaching.add(node)
    return [node for node in graph.nodes if node.target in MATRIX_PRODUCTS and node in reaching]


def _store_weights(module: GraphModule, products: frozenset[str], dtype: torch.dtype) -> None:
    readers: dict[str, list[Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            readers.setdefault(node.target, []).append(node)
    for target, nodes in readers.items():
        owner_name, _, name = target.rpartition(".")
        owner = module.get_submodule(owner_name)
        weight = getattr(owner, name)
        if weight.dtype is not torch.float32 or not _feeds_only(nodes, products):
            continue
        stored = weight.detach().to(dtype)
        _check_range(target, weight, stored)
        is_parameter = isinstance(weight, torch.nn.Parameter)
        setattr(owner, name, torch.nn.Parameter(stored, False) if is_parameter else stored)


def _check_range(name: str, weight: Tensor, stored: Tensor) -> None:
    if stored.isfinite().all() or not weight.isfinite().all():
        return
    raise TowerError(
        f"weight {name!r}: {float(weight.abs().max()):.6g} is beyond {stored.dtype}, which ends at "
        f"{torch.finfo(stored.dtype).max:g}: choose bf16, tf32 or fp32"
    )


def _feeds_only(nodes: Iterable[Node], products: frozenset[str]) -> bool:
    """True if all uses are the named products, or views that lead only to them."""
    return all(
        user.name in products or (_is_view(user.target) and _feeds_only([user], products))
        for node in nodes
        for user in node.users
    )


def _is_view(target: Target) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    returned = target._schema.returns
    return len(returned) == 1 and returned[0].alias_info is not None


def _is_beyond(node: Node, dtype: torch.dtype) -> bool:
    """True if an operator has a number beyond `dtype`, such as the fill of a mask."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    largest = torch.finfo(dtype).max
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False)) | node.kwargs
    numbers = [given.get(one.name) for one in schema.arguments if "number" in str(one.type)]
    return any(
        isinstance(number, int | float) and largest < abs(number) < math.inf for number in numbers
    )


class _MixedPrecision(torch.nn.Module):
    """Runs a graph node by node and casts by the inputs' dtypes; meant to be exported."""

    def __init__(self, program: GraphModule, products: frozenset[str], dtype: torch.dtype) -> None:
        super().__init__()
        self.program = program
        self._products = products
        self._dtype = dtype

    def forward(self, *inputs: Tensor) -> Any:
        caster = _Caster(self.program, self._products, self._dtype)
        return caster.cast(caster.run(*inputs), torch.float32)


class _Caster(Interpreter):
    def __init__(self, program: GraphModule, products: frozenset[str], dtype: torch.dtype) -> None:
        super().__init__(program)
        self._products = products
        self._dtype = dtype
        # From a tensor's id to itself, which keeps the id its own, and its cast.
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}

    def run_node(self, node: Node) -> Any:
        keeps = node.target in KEEPS_PRECISION and not _is_beyond(node, self._dtype)
        if node.op != "call_function" or keeps or node.target in SYMBOLIC_SIZE:
            return super().run_node(node)
        wanted = self._dtype if node.name in self._products else torch.float32
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        args, kwargs = self.cast(args, wanted), self.cast(kwargs, wanted)
        return self.call_function(node.target, args, kwargs)

    def cast(self, values: Any, wanted: torch.dtype) -> Any:
        """The values with every fp32 or low-precision tensor cast to `wanted`, once."""
        return map_aggregate(values, lambda value: self._cast(value, wanted))

    def _cast(self, value: Any, wanted: torch.dtype) -> Any:
        # Casts of fp64 or integers would change the module's meaning.
        between = {torch.float32, self._dtype}
        if not isinstance(value, Tensor) or value.dtype not in between - {wanted}:
            return value
        if id(value) not in self._casts:
            self._casts[id(value)] = value, value.to(wanted)
        return self._casts[id(value)][1]
