"""Refuses a program that makes tensors too large to be meant, before such a tensor is made.

Operators may make a tensor of any size out of a few numbers: `full`, `expand`, a product of a
column and a row. A small file could take all memory of the machine that opens it.

The results of usual operators are bounded by what they take. Only where that says too little are
shapes computed by torch's functions of shapes: they import SymPy and torch's compiler, 2 s of a
server's start and 70 MB.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from sharded_infer.errors import TowerError

__all__ = ["MOST_NUMBERS", "check_sizes"]

# Of a tensor, at the sizes that a program is opened with: scores of attention over 4,096 positions
# in 16 heads, for four samples.
MOST_NUMBERS: Final = 2**30
_META: Final = torch.device("meta")
_RESHAPED: Final[Mapping[Any, Any]] = dict.fromkeys(
    (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default),
    torch.ops.aten.reshape.default,
)

# Results as large as the tensors that they take, broadcast.
# fmt: off
_POINTWISE: Final = frozenset((
    "abs", "add", "addcdiv", "addcmul", "bitwise_and", "bitwise_not", "bitwise_or", "clamp",
    "clamp_max", "clamp_min", "cos", "div", "eq", "erf", "exp", "ge", "gelu", "gt",
    "hardsigmoid", "hardswish", "hardtanh", "le", "leaky_relu", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg",
    "pow", "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "softplus", "sqrt",
    "square", "sub", "tanh", "where",
))
# fmt: on
# No larger than the largest tensor that they take.
# fmt: off
_NO_LARGER: Final = frozenset((
    "_softmax", "_to_copy", "_unsafe_view", "alias", "amax", "clone", "detach", "flatten",
    "layer_norm", "mean", "native_layer_norm", "permute", "reshape", "select", "slice",
    "softmax", "split", "split_with_sizes", "squeeze", "sum", "t", "transpose", "unbind",
    "unsqueeze", "view",
))
# fmt: on
_JOINED: Final = frozenset(("cat", "stack"))
# Where the two factors stand among the tensors.
_PRODUCTS: Final = {
    "addmm": (1, 2), "bmm": (0, 1), "int8_linear": (0, 1), "linear": (0, 1), "matmul": (0, 1),
    "mm": (0, 1),
}  # fmt: skip


def check_sizes(program: GraphModule, inputs: Sequence[Tensor], where: str) -> None:
    """Computes the shapes of a program's tensors, without the tensors.

    Args:
        program: not changed.
        inputs: of the sizes that it is about to run with.
        where: names the program in messages.

    Raises:
        TowerError: a tensor has more than `MOST_NUMBERS`.
    """
    try:
        with torch.no_grad():
            _BoundedRun(program).run(*inputs)
            return
    except _UnboundedError:
        pass
    except Exception:
        # As below.
        return
    try:
        with torch.no_grad():
            _Shapes(program).run(*(tensor.to(_META) for tensor in inputs))
    except _TooLargeError as error:
        raise TowerError(f"{where}: {error}") from None
    except Exception:
        # Shapes are wrong, or follow from values: the run that comes next says so.
        return


class _TooLargeError(Exception):
    """A tensor is too large."""


class _UnboundedError(Exception):
    """What an operator takes does not tell that its result is small."""


class _BoundedRun(Interpreter):
    """One run of a graph, as far as what each operator takes bounds what it makes."""

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls an operator; raises `_UnboundedError` instead where its result may be large."""
        if isinstance(target, torch._ops.OpOverload):
            tensors = [one for one in _flat((*args, *kwargs.values())) if isinstance(one, Tensor)]
            try:
                most = _most_numbers(target.overloadpacket.__name__, tensors)
            except (IndexError, ValueError) as error:
                # Shapes that do not go together here: masks among indices, or more than NumPy has.
                raise _UnboundedError from error
            if most > MOST_NUMBERS:
                raise _UnboundedError
        return super().call_function(target, args, kwargs)


def _most_numbers(operator: str, tensors: Sequence[Tensor]) -> float:
    """A bound of the numbers of an operator's result."""
    if not tensors:
        return float("inf")
    numbers = [tensor.numel() for tensor in tensors]
    if operator in _POINTWISE:
        return prod(np.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors)))
    if operator in _NO_LARGER:
        return max(numbers)
    if operator in _JOINED:
        return sum(numbers)
    if operator == "index":
        return numbers[0] * prod(np.broadcast_shapes(*(tuple(one.shape) for one in tensors[1:])))
    if operator in _PRODUCTS:
        first, second = (numbers[at] for at in _PRODUCTS[operator])
        inner = tensors[_PRODUCTS[operator][0]].shape[-1]
        return first * second / max(inner, 1) ** 2
    return float("inf")


def _flat(values: Sequence[Any]) -> list[Any]:
    return [
        one
        for value in values
        for one in (_flat(value) if isinstance(value, list | tuple) else [value])
    ]


class _Shapes(Interpreter):
    """One run of a graph on tensors without memory."""

    def fetch_attr(self, target: str) -> Any:
        """A constant, without its memory."""
        found = super().fetch_attr(target)
        return found.to(_META) if isinstance(found, Tensor) else found

    def run_node(self, n: Node) -> Any:
        """Runs an operator; raises `_TooLargeError` for its result."""
        result = super().run_node(n)
        for one in result if isinstance(result, list | tuple) else [result]:
            _check(one, str(n.target))
        return result

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls an operator; what it makes of numbers has no memory either."""
        schema = getattr(target, "_schema", None)
        names = [] if schema is None else [argument.name for argument in schema.arguments]
        if "device" in names[: len(args)]:
            at = names.index("device")
            args = (*args[:at], _META, *args[at + 1 :])
        elif "device" in names:
            kwargs = {**kwargs, "device": _META}
        # Kernels differ in the strides that they give their results.
        return super().call_function(_RESHAPED.get(target, target), args, kwargs)


def _check(result: object, operator: str) -> None:
    if isinstance(result, Tensor) and result.numel() > MOST_NUMBERS:
        raise _TooLargeError(
            f"operator {operator} makes a tensor {list(result.shape)}, expected at most "
            f"{MOST_NUMBERS} numbers"
        )
