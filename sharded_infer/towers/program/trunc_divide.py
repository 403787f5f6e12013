"""Truncated division without processor exceptions, as a torch operator.

torch divides the least integer by -1 with an instruction that ends the process (SIGFPE). Stored
programs call `aten.div` with `rounding_mode="trunc"`; readers put this operator in its place.
"""

from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["MODE_DIVISIONS", "TRUNC_DIVIDE", "TRUNC_DIVIDE_NUMBER"]


def _trunc_divide(dividend: Tensor, divisor: Any) -> Tensor:
    if torch.result_type(dividend, divisor).is_floating_point:
        return torch.div(dividend, divisor, rounding_mode="trunc")
    # torch's floor division has its own case for -1.
    floor = torch.div(dividend, divisor, rounding_mode="floor")
    is_cut = torch.remainder(dividend, divisor) != 0
    quotient: Tensor = floor + (is_cut & ((dividend < 0) != (divisor < 0)))
    return quotient


_library: Final = torch.library.Library("sharded_infer", "FRAGMENT")  # type: ignore[no-untyped-call]
for _name, _type in (("trunc_divide", "Tensor"), ("trunc_divide.Scalar", "Scalar")):
    _library.define(f"{_name}(Tensor dividend, {_type} divisor) -> Tensor")  # type: ignore[no-untyped-call]
    _library.impl(_name, _trunc_divide, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]

TRUNC_DIVIDE: Final = torch.ops.sharded_infer.trunc_divide.default
TRUNC_DIVIDE_NUMBER: Final = torch.ops.sharded_infer.trunc_divide.Scalar
# The operators of stored programs.
MODE_DIVISIONS: Final = frozenset({torch.ops.aten.div.Tensor_mode, torch.ops.aten.div.Scalar_mode})
