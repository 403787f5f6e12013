"""Operators that a tower's stored program may call; others are refused by name.

All are pure: none reads a file, draws random numbers, returns uninitialised memory or changes a
tensor in place. A program of them has no side effects and may run on many threads at once.
"""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from sharded_infer.errors import InternalError
from sharded_infer.towers.program.int8_linear import INT8_LINEAR, INT8_LINEAR_TARGET

# Takes and returns tensors, lists of tensors or symbolic numbers; torch has no narrower type.
Operator = Callable[..., Any]

# Each table maps an aten operator to its overloads; an empty name means "default".
_MATRIX_PRODUCTS = {
    "addmm": "", "baddbmm": "", "bmm": "", "einsum": "", "linear": "", "matmul": "", "mm": "",
}  # fmt: skip

# In a low precision, these results are as accurate as their inputs: views, copies, selections and
# elementwise operators that only round their result.
_KEEPING_PRECISION = {
    "abs": "", "add": "Tensor Scalar", "alias": "", "broadcast_to": "", "cat": "", "chunk": "",
    "clamp": " Tensor", "clamp_max": " Tensor", "clamp_min": " Tensor", "clone": "",
    "column_stack": "", "concat": "", "constant_pad_nd": "", "contiguous": "", "detach": "",
    "diagonal": "", "dropout": "", "expand": "", "expand_as": "", "flatten": "using_ints",
    "flip": "", "gather": "", "gelu": "", "hardtanh": "", "hstack": "", "index": "Tensor",
    "index_select": "", "leaky_relu": "", "mT": "", "masked_fill": "Scalar", "maximum": "",
    "minimum": "", "movedim": "int intlist", "mul": "Tensor Scalar", "narrow": "", "neg": "",
    "numpy_T": "", "pad": "", "permute": "", "relu": "", "relu6": "", "repeat": "", "reshape": "",
    "reshape_as": "", "roll": "", "select": "int", "sigmoid": "", "silu": "", "slice": "Tensor",
    "split": "Tensor sizes", "split_with_sizes": "", "squeeze": " dim dims", "stack": "",
    "sub": "Tensor Scalar", "swapaxes": "", "swapdims": "", "t": "", "take_along_dim": "",
    "tanh": "", "tensor_split": "sections indices", "tile": "", "transpose": "int", "tril": "",
    "triu": "", "unbind": "int", "unflatten": "int", "unfold": "", "unsqueeze": "", "view": "",
    "view_as": "", "vstack": "", "where": "self ScalarOther ScalarSelf", "_unsafe_view": "",
}  # fmt: skip

_ARITHMETIC = {
    "addcdiv": "", "addcmul": "", "atan": "", "atan2": "", "ceil": "", "cos": "",
    "div": "Tensor Scalar Tensor_mode Scalar_mode", "erf": "", "exp": "", "exp2": "", "expm1": "",
    "floor": "", "floor_divide": " Scalar", "fmod": "Tensor Scalar", "lerp": "Scalar Tensor",
    "log": "", "log10": "", "log1p": "", "log2": "", "logaddexp": "", "nan_to_num": "",
    "pow": "Tensor_Scalar Tensor_Tensor Scalar", "reciprocal": "", "remainder": "Tensor Scalar",
    "round": " decimals", "rsqrt": "", "rsub": "Tensor Scalar", "sign": "", "sin": "", "sqrt": "",
    "square": "", "trunc": "", "bilinear": "", "conv1d": " padding", "conv2d": " padding",
    "dot": "", "mv": "", "outer": "", "tensordot": "",
}  # fmt: skip

_ACTIVATIONS_AND_NORMALISATIONS = {
    "celu": "", "elu": "", "glu": "", "hardsigmoid": "", "hardswish": "", "log_sigmoid": "",
    "logit": "", "mish": "", "prelu": "", "selu": "", "softplus": "", "threshold": "",
    "_prelu_kernel": "", "batch_norm": "", "cosine_similarity": "", "group_norm": "",
    "layer_norm": "", "linalg_vector_norm": "", "log_softmax": "int", "native_layer_norm": "",
    "norm": "Scalar ScalarOpt_dim", "rms_norm": "", "scaled_dot_product_attention": "",
    "softmax": "int", "_log_softmax": "", "_native_batch_norm_legit_no_training": "",
    "_safe_softmax": "", "_softmax": "",
}  # fmt: skip

_REDUCTIONS = {
    "all": " dim", "amax": "", "amin": "", "any": " dim", "argmax": "", "argmin": "",
    "argsort": " stable", "cumprod": "", "cumsum": "", "logsumexp": "", "max": " dim other",
    "mean": " dim", "min": " dim other", "prod": " dim_int", "sort": " stable",
    "std": " dim correction", "sum": " dim_IntList", "topk": "", "var": " dim correction",
    "var_mean": "correction",
}  # fmt: skip

_COMPARISONS = {
    "bitwise_and": "Tensor Scalar", "bitwise_not": "", "bitwise_or": "Tensor Scalar",
    "bitwise_xor": "Tensor Scalar", "eq": "Tensor Scalar", "ge": "Tensor Scalar",
    "gt": "Tensor Scalar", "isfinite": "", "isinf": "", "isnan": "", "le": "Tensor Scalar",
    "logical_and": "", "logical_not": "", "logical_or": "", "logical_xor": "",
    "lt": "Tensor Scalar", "ne": "Tensor Scalar",
}  # fmt: skip

_SELECTIONS_AND_CONVERSIONS = {
    "bucketize": "Tensor", "copy": "", "diag_embed": "", "embedding": "", "fill": "Scalar",
    "index_put": "", "lift_fresh_copy": "", "masked_fill": "Tensor", "one_hot": "",
    "repeat_interleave": "self_int", "scatter": "src value", "scatter_add": "",
    "select_scatter": "", "slice_scatter": "", "to": "dtype dtype_layout device other",
    "type_as": "", "where": "Scalar", "_to_copy": "",
}  # fmt: skip

_FACTORIES = {
    "arange": " start start_step", "eye": " m", "full": "", "full_like": "", "linspace": "",
    "new_full": "", "new_ones": "", "new_zeros": "", "ones": "", "ones_like": "",
    "scalar_tensor": "", "tril_indices": "", "triu_indices": "", "zeros": "", "zeros_like": "",
}  # fmt: skip

_SIZES = {"sym_numel": "", "sym_size": "int"}

# Arithmetic on sizes. No powers or shifts, which can exhaust memory on Python's integers.
SYMBOLIC: tuple[Operator, ...] = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod,
    operator.neg, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    operator.and_, operator.or_, torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min,
    torch.sym_not,
)  # fmt: skip

# Export emits these to check its assumptions, and readers drop them. Shapes and dtypes are checked
# before a tower runs, and lowering the precision changes dtypes intentionally.
ASSERTIONS: Final = frozenset(
    f"torch.ops.aten.{name}"
    for name in (
        "_assert_async.default",
        "_assert_async.msg",
        "_assert_scalar.default",
        "_assert_tensor_metadata.default",
        "sym_constrain_range.default",
        "sym_constrain_range_for_size.default",
    )
)


def _resolve(table: Mapping[str, str]) -> dict[str, Operator]:
    """Operators of a table by serialized target, such as `torch.ops.aten.mm.default`.

    Raises InternalError if this torch lacks an overload, or the overload changes its arguments.
    """
    resolved: dict[str, Operator] = {}
    for name, overloads in table.items():
        for overload in overloads.split(" "):
            target = f"torch.ops.aten.{name}.{overload or 'default'}"
            try:
                found = getattr(getattr(torch.ops.aten, name), overload or "default")
            except AttributeError as error:
                message = f"torch {torch.__version__} has no operator {target}"
                raise InternalError(message) from error
            if found._schema.is_mutable:
                raise InternalError(f"{target} changes its arguments and must not be allowed")
            resolved[target] = found
    return resolved


# All tensor operators, grouped by purpose.
GROUPS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({
    "matrix products": _MATRIX_PRODUCTS,
    "shapes, copies, elementwise": _KEEPING_PRECISION,
    "arithmetic": _ARITHMETIC,
    "activations, normalisations": _ACTIVATIONS_AND_NORMALISATIONS,
    "reductions": _REDUCTIONS,
    "comparisons": _COMPARISONS,
    "selections, conversions": _SELECTIONS_AND_CONVERSIONS,
    "factories": _FACTORIES,
    "sizes": _SIZES,
})  # fmt: skip

_TENSOR_OPERATORS = {
    target: found for table in GROUPS.values() for target, found in _resolve(table).items()
}

# From the target in torch.export's schema to the operator.
ALLOWED: Final[Mapping[str, Operator]] = MappingProxyType(
    _TENSOR_OPERATORS
    | {INT8_LINEAR_TARGET: INT8_LINEAR}
    | {f"{found.__module__}.{found.__name__}": found for found in SYMBOLIC}
)

# The operators that a tower's precision applies to.
MATRIX_PRODUCTS: Final = frozenset(_resolve(_MATRIX_PRODUCTS).values())

# The operators that may run in any floating-point dtype of their inputs.
KEEPS_PRECISION: Final = frozenset(_resolve(_KEEPING_PRECISION).values()) | {operator.getitem}

# The operators that read only a tensor's shape.
SYMBOLIC_SIZE: Final = frozenset(_resolve(_SIZES).values())


def _trunc_divide(dividend: Tensor, divisor: Any) -> Tensor:
    """Truncated division without processor exceptions.

    torch divides the least integer by -1 with an instruction that ends the process (SIGFPE). Stored
    programs call `aten.div` with `rounding_mode="trunc"`; readers put this operator in its place.
    """
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
