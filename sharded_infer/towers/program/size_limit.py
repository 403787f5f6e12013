"""Refusal of programs with oversized tensors, before such a tensor is allocated.

A few numbers suffice (`full`, `expand`, an outer product), so that a small file could take all
memory of the machine that opens it. Most operators' arguments bound their results. Only the others
use torch's shape functions, whose import (SymPy, torch's compiler) takes 2 s and 70 MB.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.utils._pytree import tree_leaves, tree_map_only

from sharded_infer.errors import TowerError

# Of a tensor, at the sizes that a program is opened with: scores of attention over 4,096 positions
# in 16 heads, for four samples.
MOST_NUMBERS: Final = 2**30
_META: Final = torch.device("meta")


def run_bounded(program: GraphModule, where: str, *inputs: Tensor) -> Any:
    """Runs a program, unless it makes a tensor of more than `MOST_NUMBERS`.

    Raises:
        TowerError: a tensor would be too large; the program's own errors pass. Names `where`.
    """
    try:
        return _BoundedRun(program).run(*inputs)
    except _TooLargeError as error:
        raise TowerError(f"{where}: {error}") from None


class _TooLargeError(Exception):
    """A tensor is too large."""


class _BoundedRun(Interpreter):
    """A run that computes the size of a result before it is allocated."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        # Torch would log an error, and import its compiler to do so.
        self.extra_traceback = False

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls an operator; raises `_TooLargeError` for its result."""
        if isinstance(target, torch._ops.OpOverload) and not _is_bounded(target, args, kwargs):
            _check_shapes(target, args, kwargs)
        return super().call_function(target, args, kwargs)


def _is_bounded(target: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """True if an operator's arguments bound its result to an allowed size."""
    bound = BOUNDED.get(target.overloadpacket.__name__)
    if bound is None:
        return False
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = {name: given[name] for name in names if name in given}
    tensors = [one for one in tree_leaves([*values.values()]) if isinstance(one, Tensor)]
    # A sum over no numbers has more numbers than its input.
    if any(tensor.numel() == 0 for tensor in tensors):
        return False
    try:
        return bound(tensors, values) <= MOST_NUMBERS
    except (IndexError, KeyError, TypeError, ValueError):
        # Incompatible shapes, or more dimensions than NumPy's.
        return False


def _check_shapes(target: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> None:
    """Calls an operator on tensors without memory; raises `_TooLargeError` for its result."""
    if "device" in (argument.name for argument in target._schema.arguments):
        kwargs = {**kwargs, "device": _META}
    try:
        given = tree_map_only(Tensor, lambda one: one.to(_META), (args, kwargs))
        made = target(*given[0], **given[1])
    except Exception:
        # The arguments are wrong: the call itself reports it.
        return
    for one in tree_leaves(made):
        if isinstance(one, Tensor) and one.numel() > MOST_NUMBERS:
            raise _TooLargeError(
                f"operator {target} makes a tensor {list(one.shape)}, expected at most "
                f"{MOST_NUMBERS} numbers"
            )


# An upper bound of the numbers of a result, from an operator's tensors and all its arguments by
# their names in its schema.
_Bound = Callable[[Sequence[Tensor], Mapping[str, Any]], float]


def _product(tensors: Sequence[Tensor], _values: Mapping[str, Any]) -> float:
    first, second = tensors[:2]
    return first.numel() * second.numel() / first.shape[-1] ** 2


def _product_added(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    return max(_product(tensors[1:], values), tensors[0].numel())


def _attention(tensors: Sequence[Tensor], _values: Mapping[str, Any]) -> float:
    queries, keys, rows = tensors[:3]
    vectors = queries.numel() / queries.shape[-1]
    return vectors * max(keys.numel() / keys.shape[-1], rows.numel())


def _expanded(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    shape, sizes = tensors[0].shape, values["size"]
    kept = [1] * (len(sizes) - len(shape)) + list(shape)
    return prod(have if size == -1 else size for have, size in zip(kept, sizes, strict=True))


def _repeated(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    times = values["repeats" if "repeats" in values else "dims"]
    return float(tensors[0].numel() * prod(times))


def _padded(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    shape, pads = tensors[0].shape, values["pad"]
    added = [abs(before) + abs(after) for before, after in zip(pads[::2], pads[1::2], strict=True)]
    added += [0] * (len(shape) - len(added))
    return float(prod(size + more for size, more in zip(reversed(shape), added, strict=True)))


def _counted(_tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    step = abs(values.get("step", 1))
    return float(abs(values["end"] - values.get("start", 0)) / step + 1) if step else inf


def _of(bound: _Bound, operators: str) -> dict[str, _Bound]:
    return dict.fromkeys(operators.split(), bound)


# Key: an operator's name.
BOUNDED: Final[Mapping[str, _Bound]] = {
    **_of(
        lambda tensors, _: prod(np.broadcast_shapes(*(one.shape for one in tensors))),
        "abs add addcdiv addcmul atan bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu "
        "clamp clamp_max clamp_min cos cosine_similarity div elu eq erf exp exp2 expand_as expm1 "
        "floor floor_divide fmod ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf isnan "
        "le leaky_relu lerp log log10 log1p log2 log_sigmoid logaddexp logical_and logical_not "
        "logical_or logical_xor logit lt masked_fill max maximum min minimum mish mul nan_to_num "
        "ne neg pow reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign silu sin "
        "softplus sqrt square sub tanh threshold trunc trunc_divide where",
    ),
    **_of(
        lambda tensors, _: max(one.numel() for one in tensors),
        "_log_softmax _native_batch_norm_legit_no_training _prelu_kernel _safe_softmax _softmax "
        "_to_copy _unsafe_view alias all amax amin any argmax argmin argsort batch_norm bucketize "
        "chunk clone contiguous copy cumprod cumsum detach diagonal dropout fill flatten flip "
        "full_like glu group_norm index_put layer_norm lift_fresh_copy linalg_vector_norm "
        "log_softmax logsumexp mT mean movedim narrow native_layer_norm norm numpy_T ones_like "
        "permute prelu prod reshape reshape_as rms_norm roll scatter scatter_add select "
        "select_scatter slice slice_scatter softmax sort split split_with_sizes squeeze std sum "
        "swapaxes swapdims t tensor_split to topk transpose tril triu type_as unbind unflatten "
        "unsqueeze var var_mean view view_as zeros_like",
    ),
    **_of(
        lambda tensors, _: sum(one.numel() for one in tensors),
        "cat column_stack concat hstack stack vstack",
    ),
    **_of(
        lambda tensors, _: prod(one.numel() for one in tensors),
        "dot index index_select mv outer take_along_dim tensordot",
    ),
    **_of(_product, "bmm int8_linear linear matmul mm"),
    **_of(_product_added, "addmm baddbmm"),
    **_of(_attention, "scaled_dot_product_attention"),
    **_of(lambda tensors, _: tensors[1].numel() * tensors[0].shape[-1], "embedding"),
    **_of(lambda tensors, _: tensors[1].numel(), "gather"),
    **_of(lambda _, values: prod(values["size"]), "full new_full new_ones new_zeros ones zeros"),
    **_of(_expanded, "broadcast_to expand"),
    **_of(_repeated, "repeat tile"),
    **_of(_padded, "constant_pad_nd pad"),
    **_of(_counted, "arange"),
    **_of(lambda *_: 1, "scalar_tensor sym_numel sym_size"),
}
# Operators whose results are bounded by torch's functions of shapes alone.
UNBOUNDED: Final = frozenset((
    "bilinear", "conv1d", "conv2d", "diag_embed", "einsum", "eye", "linspace", "one_hot",
    "repeat_interleave", "tril_indices", "triu_indices", "unfold",
))  # fmt: skip
