"""The pass between a tower's matrix products on a CUDA device: the cross of a DCNv2, and its cast.

    x = values + first * factor         fp32, one rounding (a fused multiply-add)
    low = bf16(x) or fp16(x)            rounded to nearest, ties to even

torch needs two passes. `kernels.dense_step` is the same for processors.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 1024, 4
_GROUP = 8  # elements that are moved at once, 16 bytes of the narrow ones


@triton.jit(do_not_specialize=["groups", "rest"])  # type: ignore[untyped-decorator]
def cross_kernel(  # type: ignore[no-untyped-def]  # noqa: D103 - see the module
    values, first, factor, out, low, groups, rest,
    KEEP: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # A group is inside or outside as a whole: the compiler sees that, and moves it at once.
    _cross(values, first, factor, out, low, place, place // GROUP < groups, KEEP)
    if tl.program_id(0) == 0:
        behind = tl.arange(0, GROUP)
        last = groups.to(tl.int64) * GROUP + behind
        _cross(values, first, factor, out, low, last, behind < rest, KEEP)


@triton.jit  # type: ignore[untyped-decorator]
def _cross(  # type: ignore[no-untyped-def]
    values, first, factor, out, low, place, inside, KEEP: tl.constexpr
):
    x = tl.fma(
        tl.load(first + place, mask=inside, other=0.0),
        tl.load(factor + place, mask=inside, other=0.0).to(tl.float32),
        tl.load(values + place, mask=inside, other=0.0),
    )
    if KEEP:
        tl.store(out + place, x, mask=inside)
    tl.store(low + place, x.to(low.dtype.element_ty), mask=inside)


def cross(
    values: Tensor, first: Tensor, factor: Tensor, low: torch.dtype, *, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """Starts the pass on the current stream; returns x (None unless `keep`) and low.

    Args:
        values: fp32, contiguous.
        first: fp32, as `values`.
        factor: fp32, bf16 or fp16, as `values`.
        low: bf16 or fp16.
    """
    out = torch.empty_like(values) if keep else None
    narrow = torch.empty_like(values, dtype=low)
    count = values.numel()
    if not count:
        return out, narrow  # CUDA refuses a launch of nothing
    groups, rest = divmod(count, _GROUP)
    cross_kernel[(triton.cdiv(count, _BLOCK),)](
        values,
        first,
        factor,
        narrow if out is None else out,
        narrow,
        groups,
        rest,
        KEEP=keep,
        GROUP=_GROUP,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        # 64 warps, all that a multiprocessor holds; some assemblers would take 34 registers.
        maxnreg=32,
        enable_fp_fusion=True,
    )
    return out, narrow
