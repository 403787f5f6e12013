"""Limits of a core: matrix products of a tower's sizes, and copies of random rows."""

import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.backends.native import gather_rows
from kernels.dense_step import ByteLevels
from kernels.machine import machine
from kernels.product import PackedWeight, Product, product_dtypes
from serving.bench.turns import Parts, seconds_of, timed
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.host_products import has_products
from sharded_infer.towers.lowering.int8_packing import has_exact_int8
from sharded_infer.towers.lowering.packing import packable_dtypes

_DTYPES = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,  # which processors have not
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.INT8: torch.bfloat16,
}
# Its numbers are subnormal in no format; some processors are slow with subnormal numbers.
FILLED_BYTE = 0x3C
# Calls in a row, of which the fastest counts: weights and samples are in the cache by then.
_PRODUCTS_IN_A_ROW = 3


def timed_products(products: Sequence[Sequence[Callable[[], object]]]) -> Parts:
    """Seconds of matrix products, by number, each in its fastest implementation."""
    return {
        str(number): min(seconds_of(way) for way in ways for _ in range(_PRODUCTS_IN_A_ROW))
        for number, ways in enumerate(products)
    }


def random_products(
    samples: int, inputs: int, outputs: int, precision: Precision, generator: torch.Generator
) -> list[Callable[[], object]]:
    """Implementations of a product of random factors `[samples, inputs]` and a weight.

    On plain weights, on packed weights if oneDNN can, and by `kernels.product` if it is compiled:
    the fastest depends on machine and sizes. An int8 product may run in bf16, or in fp32 where the
    machine has no bf16, if that is faster.
    """
    left = torch.randn(samples, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator)
    dtype = _DTYPES[precision]
    if precision is Precision.INT8 and not has_products(Precision.BF16, machine()):
        dtype = torch.float32
    ways = _products(left, weight, dtype)
    if precision is Precision.INT8 and has_exact_int8():
        ways.append(_int8_product(left, weight))
    if precision is Precision.INT8 and torch.int8 in product_dtypes():
        ways.append(_compiled(_levels(left), _integers(weight)))
    return ways


def _products(left: Tensor, weight: Tensor, dtype: torch.dtype) -> list[Callable[[], object]]:
    left, weight = left.to(dtype), weight.to(dtype)
    right = weight.t().contiguous()
    ways: list[Callable[[], object]] = [lambda: left @ right]
    if dtype in packable_dtypes():
        # As torch.compile's freezing packs a linear layer.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(left))
        product = torch.ops.mkldnn._linear_pointwise
        ways.append(lambda: product(left, packed, None, "none", [], ""))
    if dtype in product_dtypes():
        ways.append(_compiled(left, weight))
    return ways


def _compiled(left: Tensor, weight: Tensor) -> Callable[[], object]:
    packed, outputs = PackedWeight(weight), len(weight)
    if weight.dtype is torch.int8:
        levels = ByteLevels(torch.ones(outputs), 128)
        scale = torch.full((outputs,), 1e-4)
        product = Product(packed, scale=scale, zero_point=128, keep=False, low=levels)
    elif weight.dtype is torch.float32:
        product = Product(packed)
    else:
        product = Product(packed, keep=False, low=weight.dtype)
    return lambda: product(left)


def _levels(left: Tensor) -> Tensor:
    return (left * 32).add_(128).clamp_(0, 255).to(torch.uint8)


def _integers(weight: Tensor) -> Tensor:
    return (weight * 32).clamp_(-127, 127).to(torch.int8)


def _int8_product(left: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    levels = _levels(left)
    packed = torch.ops.onednn.qlinear_prepack(_integers(weight), None)
    scale, zeros = torch.ones(len(weight)), torch.zeros(len(weight), dtype=torch.int64)
    product = torch.ops.onednn.qlinear_pointwise
    rest: tuple[Any, ...] = (packed, scale, zeros, None, 1e4, 128, torch.uint8, "none", [], "")
    return lambda: product(levels, 1.0, 128, *rest)


def private_memory(count: int, *, huge: bool) -> Tensor:
    """Private memory, uint8 `[count]`, with its pages written, of 2 MiB if huge and possible."""
    mapping = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8).fill_(FILLED_BYTE)


def row_gather(
    rows: Sequence[int], row_bytes: int, *, huge_pages: bool
) -> Callable[[Sequence[NDArray[np.int64]]], Parts]:
    """Make tables; the function copies the rows of each table's ids, and returns the seconds.

    The tables have 2 MiB pages if wanted and available, otherwise 4 KiB pages.
    """
    matrix = private_memory(sum(rows) * row_bytes, huge=huge_pages).view(-1, row_bytes)
    first_rows = np.concatenate([[0], np.cumsum(rows)[:-1]])

    def gather(ids: Sequence[NDArray[np.int64]]) -> Parts:
        parts = [first + one.ravel() for first, one in zip(first_rows, ids, strict=True)]
        together = torch.from_numpy(np.concatenate(parts))
        return timed(lambda: gather_rows(matrix, together))

    return gather
