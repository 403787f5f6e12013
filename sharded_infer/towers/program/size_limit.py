"""Refuses a program that makes tensors too large to be meant, before anything of it is computed.

Operators may make a tensor of any size out of a few numbers: `full`, `expand`, a product of a
column and a row. A small file could take all memory of the machine that opens it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

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
            _Shapes(program).run(*(tensor.to(_META) for tensor in inputs))
    except _TooLargeError as error:
        raise TowerError(f"{where}: {error}") from None
    except Exception:
        # Shapes are wrong, or follow from values: the run that comes next says so.
        return


class _TooLargeError(Exception):
    """A tensor is too large."""


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
