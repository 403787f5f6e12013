"""Decomposition of operators outside a tower's list into those on it, at export.

torch decomposes most operators itself. Doing so once, on the publisher's machine, keeps the list
that a reader trusts short.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.export import ExportedProgram

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.operators import ALLOWED, ASSERTIONS
from sharded_infer.towers.program.substitutes import instead_of

_aten = torch.ops.aten
# A decomposition may need another: a GRU's cell, its gates, the halves of a split.
_MOST_ROUNDS: Final = 10
_LISTED: Final = frozenset(ALLOWED.values())

_Rewriting = Callable[..., Any]


def decompose(program: ExportedProgram) -> ExportedProgram:
    """An equivalent program of allowed operators.

    Raises:
        TowerError: an operator can neither be called nor rewritten; names it, the submodule that
            calls it, and an alternative.
    """
    table: dict[OpOverload, _Rewriting] = {}
    for _ in range(_MOST_ROUNDS):
        found = {node.target for node in program.graph.nodes if _is_foreign(node)}
        changing = any(_changes_arguments(node) for node in program.graph.nodes)
        more = {target: rule for target in found - set(table) if (rule := _rewriting(target))}
        if not more and not changing:
            break
        table |= more
        # In-place operators, such as ReLU(inplace=True), get their pure forms too.
        with warnings.catch_warnings():
            # torch copies its own tree specs by a class that it has deprecated.
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            program = program.run_decompositions(table)
    for node in program.graph.nodes:
        if _is_foreign(node):
            raise TowerError(_refusal(node))
    return program


def _is_foreign(node: torch.fx.Node) -> bool:
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and node.target not in _LISTED
        and f"torch.ops.{node.target}" not in ASSERTIONS
    )


def _changes_arguments(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _rewriting(target: OpOverload) -> _Rewriting | None:
    """The decomposition of an operator: ours, torch's, or torch's composite implementation."""
    if target in _OURS:
        return _OURS[target]
    if target in decomposition_table:
        return decomposition_table[target]
    return _as_composed(target) if target._can_decompose() else None


def _as_composed(target: OpOverload) -> _Rewriting:
    """The composition of torch itself; `target.decompose` would find export's replacement."""
    composed = torch._C.DispatchKey.CompositeImplicitAutograd
    return lambda *args, **kwargs: target._op_dk(composed, *args, **kwargs)


def _refusal(node: torch.fx.Node) -> str:
    origin = node.meta.get("original_aten", node.target)
    modules = list(node.meta.get("nn_module_stack", {}).values())
    called_by = ""
    if modules and (path := str(modules[-1][0]).removeprefix("tower").removeprefix(".")):
        kind = modules[-1][1]
        called_by = (
            f", called by {path} ({getattr(kind, '__name__', str(kind)).rpartition('.')[2]})"
        )
    named = f"torch.ops.{origin}"
    return f"operator {named!r}{called_by} is not allowed in a tower{instead_of(named)}"


def _average_pool(
    values: Tensor,
    kernel: list[int],
    stride: list[int] | None = None,
    padding: list[int] | None = None,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """`avg_pool2d`, `[..., H, W]`, as a sum over views of windows."""
    steps, pads = stride or kernel, padding or [0]
    sums, counts = values, torch.ones(values.shape[-2:], dtype=values.dtype)
    for dim in (-2, -1):
        size, step, pad = (
            numbers[0 if len(numbers) == 1 else dim] for numbers in (kernel, steps, pads)
        )
        length = values.shape[dim]
        rest = length + 2 * pad - size
        windows = (-(-rest // step) if ceil_mode else rest // step) + 1
        if ceil_mode and (windows - 1) * step >= length + pad:
            windows -= 1  # no window begins in the padding on the right
        beyond = max(0, (windows - 1) * step + size - length - 2 * pad)
        sums = _windowed_sum(_padded(sums, dim, pad, pad + beyond, 0.0), dim, size, step)
        counts = _padded(counts, dim, pad, pad, 1.0 if count_include_pad else 0.0)
        counts = _windowed_sum(_padded(counts, dim, 0, beyond, 0.0), dim, size, step)
    return sums / (counts if divisor_override is None else divisor_override)


def _padded(values: Tensor, dim: int, before: int, after: int, number: float) -> Tensor:
    if not before and not after:
        return values
    return torch.constant_pad_nd(values, [0, 0] * (-dim - 1) + [before, after], number)


def _windowed_sum(values: Tensor, dim: int, size: int, step: int) -> Tensor:
    return values.unfold(dim, size, step).sum(-1)


def _leaky(
    values: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> Any:
    """`rrelu` of inference: a leaky ReLU of the mean slope."""
    return NotImplemented if training else _aten.leaky_relu(values, (lower + upper) / 2)


def _scatter_sum(
    values: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Any:
    if reduce != "sum" or not include_self:
        return NotImplemented
    return values.scatter_add(dim, index, source)


def _searched(
    boundaries: Tensor,
    values: Tensor,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    if boundaries.dim() != 1 or sorter is not None:
        return NotImplemented
    return torch.bucketize(values, boundaries, out_int32=out_int32, right=right or side == "right")


_OURS: Final[Mapping[OpOverload, _Rewriting]] = {
    _aten.avg_pool2d.default: _average_pool,
    _aten.rrelu.default: _leaky,
    _aten.scatter_reduce.two: _scatter_sum,
    _aten.searchsorted.Tensor: _searched,
    # Zeros for uninitialised memory, which readers must never get.
    _aten.empty.memory_format: lambda size, dtype=None, **_: torch.zeros(size, dtype=dtype),
    _aten.empty_like.default: lambda like, dtype=None, **_: torch.zeros_like(like, dtype=dtype),
    _aten.new_empty.default: lambda like, size, dtype=None, **_: like.new_zeros(size, dtype=dtype),
    _aten.tan.default: lambda values: values.sin() / values.cos(),
    # torch's own decomposition of it has operators that export does not take.
    _aten.meshgrid.indexing: _as_composed(_aten.meshgrid.indexing),
}
