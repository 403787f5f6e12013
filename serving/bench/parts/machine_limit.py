"""Limits of a core: matrix products of a tower's sizes, and copies of random rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.backends.native import gather_rows
from kernels.dense_step import ByteLevels
from kernels.machine import machine
from kernels.product import PackedWeight, Product, product_dtypes
from serving.bench.parts.lookup import private_memory
from serving.bench.turns import seconds_of
from serving.bench.workloads.dlrm_v2 import DlrmRequest
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
# Calls in a row, of which the fastest counts: weights and samples are in the cache by then.
_PRODUCTS_IN_A_ROW = 3


class MatrixProducts:
    """Only the tower's matrix products in one precision, without biases and activations.

    Each is computed on plain weights, on packed weights if oneDNN can, and by `kernels.product` if
    it is compiled: the fastest depends on machine and sizes. An int8 product may run in bf16, or in
    fp32 where the machine has no bf16, if that is faster.
    """

    def __init__(self, tower: nn.Module, samples: int, precision: Precision) -> None:
        """Make random weights of the tower's linear layers, and left factors of `samples` rows."""
        linears = [module for module in tower.modules() if isinstance(module, nn.Linear)]
        self.shapes = tuple((one.in_features, one.out_features) for one in linears)
        self._products: list[list[Callable[[], object]]] = []
        generator = torch.Generator().manual_seed(0)
        for inputs, outputs in self.shapes:
            left = torch.randn(samples, inputs, generator=generator)
            weight = torch.randn(outputs, inputs, generator=generator)
            self._products.append(products_of(left, weight, precision))

    def __call__(self) -> dict[str, float]:
        """Seconds of every layer's product in each variant, as `<layer> <variant>`."""
        return {
            f"{layer} {way}": min(seconds_of(product) for _ in range(_PRODUCTS_IN_A_ROW))
            for layer, ways in enumerate(self._products)
            for way, product in enumerate(ways)
        }

    def layer_seconds(self, parts: Mapping[str, float]) -> list[float]:
        """Seconds of each layer in its fastest variant, from the result of a call."""
        return [
            min(parts[f"{layer} {way}"] for way in range(len(ways)))
            for layer, ways in enumerate(self._products)
        ]


def products_of(left: Tensor, weight: Tensor, precision: Precision) -> list[Callable[[], object]]:
    """Implementations of `left @ weight.T`, fp32 `[samples, inputs]` and `[outputs, inputs]`."""
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
    bytes_of, floats = weight.dtype is torch.int8, weight.dtype is torch.float32
    product = Product(
        PackedWeight(weight),
        scale=torch.full((len(weight),), 1e-4) if bytes_of else None,
        zero_point=128 if bytes_of else 0,
        keep=floats,
        low=ByteLevels(torch.ones(len(weight)), 128)
        if bytes_of
        else None
        if floats
        else weight.dtype,
    )
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


class RowGather:
    """Copies of the rows of requests."""

    def __init__(self, rows: Sequence[int], row_bytes: int, *, huge_pages: bool) -> None:
        """Make tables, with 2 MiB pages if wanted and available, otherwise 4 KiB pages."""
        memory = private_memory(sum(rows) * row_bytes, huge=huge_pages)
        self._matrix = memory.view(-1, row_bytes)
        self._first_rows = np.concatenate([[0], np.cumsum(rows)[:-1]])

    def seconds(self, request: DlrmRequest) -> float:
        """Seconds to copy a request's rows; raises as `seconds_of_ids`."""
        return self.seconds_of_ids(request.ids)

    def seconds_of_ids(self, ids: Sequence[NDArray[np.int64]]) -> float:
        """Seconds to copy rows of each table; InputError if the kernels were not compiled."""
        parts = [first + one.ravel() for first, one in zip(self._first_rows, ids, strict=True)]
        together = torch.from_numpy(np.concatenate(parts))
        return seconds_of(lambda: gather_rows(self._matrix, together))
