"""What a core can do at best: matrix products of a tower's sizes, and reading random rows."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kernels.native_backend import gather_rows
from serving.bench.dlrm_v2 import DlrmRequest
from serving.bench.lookup_measurement import private_memory
from sharded_infer.int8_packing import has_exact_int8
from sharded_infer.precision import Precision
from sharded_infer.tower_packing import packable_dtypes

_DTYPES = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,  # which processors have not
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.INT8: torch.bfloat16,
}
# Of so many calls in a row the fastest counts: weights and samples are in the cache by then.
_PRODUCTS_IN_A_ROW = 3


class MatrixProducts:
    """The tower's matrix products in one precision and nothing else: no biases, no activations.

    Each is computed on plain weights and, where oneDNN can, on weights that it has put into an
    order of its own; which is faster depends on the machine and the sizes. Int8 may compute a
    product in bf16 where that is faster.
    """

    def __init__(self, tower: nn.Module, samples: int, precision: Precision) -> None:
        """Makes random weights and samples.

        Args:
            tower: its linear layers give the sizes.
            samples: rows of the left factors.
            precision: of the products.
        """
        linears = [module for module in tower.modules() if isinstance(module, nn.Linear)]
        self.shapes = tuple((one.in_features, one.out_features) for one in linears)
        self._products: list[list[Callable[[], Tensor]]] = []
        generator = torch.Generator().manual_seed(0)
        for inputs, outputs in self.shapes:
            left = torch.randn(samples, inputs, generator=generator)
            weight = torch.randn(outputs, inputs, generator=generator)
            ways = _products(left, weight, _DTYPES[precision])
            if precision is Precision.INT8 and has_exact_int8():
                ways.append(_int8_product(left, weight))
            self._products.append(ways)

    def __call__(self) -> dict[str, float]:
        """Seconds of every layer's product in every way that there is, as `<layer> <way>`."""
        return {
            f"{layer} {way}": min(_seconds(product) for _ in range(_PRODUCTS_IN_A_ROW))
            for layer, ways in enumerate(self._products)
            for way, product in enumerate(ways)
        }

    def layer_seconds(self, parts: Mapping[str, float]) -> list[float]:
        """Seconds of each layer in the faster way, from seconds as a call returns them."""
        return [
            min(parts[f"{layer} {way}"] for way in range(len(ways)))
            for layer, ways in enumerate(self._products)
        ]


def _products(left: Tensor, weight: Tensor, dtype: torch.dtype) -> list[Callable[[], Tensor]]:
    left, weight = left.to(dtype), weight.to(dtype)
    right = weight.t().contiguous()
    ways: list[Callable[[], Tensor]] = [lambda: left @ right]
    if dtype in packable_dtypes():
        # What torch.compile's freezing turns a linear layer into.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(left))
        product = torch.ops.mkldnn._linear_pointwise
        ways.append(lambda: product(left, packed, None, "none", [], ""))
    return ways


def _int8_product(left: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """Bytes times packed bytes, to bytes."""
    levels = (left * 32).add_(128).clamp_(0, 255).to(torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack((weight * 32).clamp_(-127, 127).to(torch.int8), None)
    scale, zeros = torch.ones(len(weight)), torch.zeros(len(weight), dtype=torch.int64)
    product = torch.ops.onednn.qlinear_pointwise
    rest: tuple[Any, ...] = (packed, scale, zeros, None, 1e4, 128, torch.uint8, "none", [], "")
    return lambda: product(levels, 1.0, 128, *rest)


class RowGather:
    """Copying the rows that requests ask for, and nothing else."""

    def __init__(self, rows: Sequence[int], row_bytes: int, *, huge_pages: bool) -> None:
        """Makes tables of the wanted size.

        Args:
            rows: of each table.
            row_bytes: of each row.
            huge_pages: pages of 2 MiB, where the system has them to give; otherwise of 4 KiB.
        """
        memory = private_memory(sum(rows) * row_bytes, huge=huge_pages)
        self._matrix = memory.view(-1, row_bytes)
        self._first_rows = np.concatenate([[0], np.cumsum(rows)[:-1]])

    def seconds(self, request: DlrmRequest) -> float:
        """Time of copying a request's rows.

        Args:
            request: its ids count.

        Raises:
            InputError: the kernels were not compiled.
        """
        parts = [
            first + one.ravel() for first, one in zip(self._first_rows, request.ids, strict=True)
        ]
        together = torch.from_numpy(np.concatenate(parts))
        return _seconds(lambda: gather_rows(self._matrix, together))


def _seconds(call: Callable[[], object]) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started
