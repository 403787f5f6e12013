"""The machine's measured limits, of which other figures are fractions."""

from functools import partial

import torch

from sharded_infer.engines.device.tower.products import exact_products, with_tf32
from tests.gpu_check.stage import Report, Stage
from tests.gpu_check.timing import seconds_of

_COPY_BYTES = 4 << 30
_MATRIX = 8192
_SMALL = 64


def run(stage: Stage) -> Report:
    """Copy bandwidth, bytes read and written a second; matrix products, operations a second."""
    device, is_gpu = stage.device, not stage.is_dry
    count = _COPY_BYTES if is_gpu else _SMALL
    source = torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # Different engines of the card may execute copies in a graph and outside.
    copy_seconds = min(
        seconds_of([partial(copy, target, source)], device, graph=graph)
        for copy in (_copy, _copy_by_kernel)
        for graph in (True, False)
    )
    del source, target
    size = _MATRIX if is_gpu else _SMALL
    found: Report = {"copy_bytes_per_second": 2 * count / copy_seconds}
    stage.save(found)
    for name, (dtype, multiply) in _PRODUCTS.items():
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        with exact_products():
            seconds = seconds_of([partial(multiply, left, right, out)], device)
        found[f"{name}_operations_per_second"] = 2 * size**3 / seconds
        stage.save(found)
    return found


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _copy_by_kernel(target: torch.Tensor, source: torch.Tensor) -> None:
    torch.bitwise_not(source.view(torch.int64), out=target.view(torch.int64))


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(left, right, out=out)


def _multiply_tf32(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    with_tf32(torch.mm, left, right, out=out)


_PRODUCTS = {
    "fp32": (torch.float32, _multiply),
    "tf32": (torch.float32, _multiply_tf32),
    "bf16": (torch.bfloat16, _multiply),
    "fp16": (torch.float16, _multiply),
}
