"""Fuses the steps between a program's products into passes of `kernels.dense_step`.

    x = addcmul(v, f, u); low = to(x, bf16)      ->  x, low = step(v, f, u)
    x = v + f * u;        low = bytes(x)         ->  x, low = step(v, f, u)

The cross of a DCNv2 then reads and writes memory once instead of three times.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.dense_step import ByteLevels, DenseStep, Stepped
from sharded_infer.errors import InternalError
from sharded_infer.towers.lowering.constants import add_call
from sharded_infer.towers.lowering.rewriting import module_of, remove_unused
from sharded_infer.towers.lowering.tensor_kinds import Kind, kinds_of

_aten = torch.ops.aten
_CASTS: Final = (_aten.to.dtype,)
_LOW: Final = torch.bfloat16


class Step(torch.nn.Module):
    """One pass (`kernels.dense_step.DenseStep`); `keep`: return x itself too."""

    def __init__(self, *, keep: bool, low: ByteLevels | torch.dtype | None) -> None:
        super().__init__()
        self.keeps, self.low = keep, low
        self._run = DenseStep(keep=keep, low=low)

    def forward(
        self, values: Tensor, first: Tensor | None = None, factor: Tensor | None = None
    ) -> Stepped:
        """Runs the pass; shapes and dtypes as in `DenseStep`."""
        return self._run(values, first, factor)


class Added(NamedTuple):
    """Nodes of a pass's results; see `kernels.dense_step.Stepped`."""

    x: Node
    low: Node
    poison: Node


def fuse_steps(program: GraphModule, inputs: Sequence[Tensor]) -> int:
    """Fuses each cross and the cast after it into one pass, in place; returns their number.

    `inputs` are any valid ones, for dtypes and shapes.
    """
    kinds = kinds_of(program, inputs)
    made = 0
    for node in list(program.graph.nodes):
        parts = _cross(node)
        if parts is not None and _alike(parts, kinds):
            _fuse(program, node, parts, kinds)
            made += 1
    if made:
        remove_unused(program)
    return made


def add_step(program: GraphModule, step: Step, args: Sequence[Any]) -> Added:
    """Adds a pass at the graph's insertion point; unused results are dead code."""
    found = add_call(program, "_step", step, tuple(args))
    return Added(*(program.graph.call_function(operator.getitem, (found, i)) for i in range(3)))


_Cross = tuple[Node, Node, Node]  # values, first, factor


def _cross(node: Node) -> _Cross | None:
    if node.kwargs or not all(isinstance(argument, Node) for argument in node.args):
        return None
    if node.target is _aten.addcmul.default and len(node.args) == 3:
        values, first, factor = node.args
        return values, first, factor  # type: ignore[return-value]
    if node.target is not _aten.add.Tensor or len(node.args) != 2:
        return None
    for values, product in (node.args, reversed(node.args)):
        if _is_product(product):
            first, factor = product.args  # type: ignore[union-attr]
            return values, first, factor  # type: ignore[return-value]
    return None


def _is_product(node: object) -> bool:
    return (
        isinstance(node, Node)
        and node.target is _aten.mul.Tensor
        and len(node.users) == 1
        and all(isinstance(argument, Node) for argument in node.args)
    )


def _alike(parts: _Cross, kinds: Mapping[Node, Kind]) -> bool:
    """True if all three are fp32 tensors of one shape; a factor may be bf16."""
    found = [kinds.get(part) for part in parts]
    if any(kind is None or kind[1] != found[0][1] for kind in found):  # type: ignore[index]
        return False
    dtypes = [kind[0] for kind in found if kind is not None]
    return dtypes[:2] == [torch.float32] * 2 and dtypes[2] in (torch.float32, _LOW)


def _fuse(program: GraphModule, node: Node, parts: _Cross, kinds: dict[Node, Kind]) -> None:
    values, first, factor = parts
    if factor.target in _CASTS and kinds.get(factor.args[0], (None,))[0] is _LOW:  # type: ignore[arg-type]
        factor = factor.args[0]  # type: ignore[assignment]
    narrowing = next((user for user in node.users if _low_of(program, user) is not None), None)
    low = None if narrowing is None else _low_of(program, narrowing)
    keep = len(node.users) > (narrowing is not None)
    with program.graph.inserting_before(node):
        made = add_step(program, Step(keep=keep, low=low), (values, first, factor))
    if narrowing is not None:
        _replace_narrowing(narrowing, made)
    node.replace_all_uses_with(made.x)
    kinds[made.x] = kinds[node]  # what crosses it in turn looks it up


def _low_of(program: GraphModule, user: Node) -> ByteLevels | torch.dtype | None:
    if user.target in _CASTS and user.args[1:] == (_LOW,) and not user.kwargs:
        return _LOW
    step = module_of(program, user, Step)
    return None if step is None or len(user.args) != 1 else step.low


def _replace_narrowing(narrowing: Node, made: Added) -> None:
    if narrowing.op != "call_module":
        narrowing.replace_all_uses_with(made.low)
        return
    for reader in list(narrowing.users):
        if reader.target is not operator.getitem:
            raise InternalError(f"a pass is read by {reader.target}")
        reader.replace_all_uses_with(made[reader.args[1]])  # type: ignore[index]
