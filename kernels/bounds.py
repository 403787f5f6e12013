"""Which ids lie outside their tables."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.native_library import load_library

_LIBRARY = load_library(Path(__file__).parent)


def out_of_range(bags: Bags, rows: Tensor) -> Tensor | None:
    """Marks ids outside their feature's table.

    Args:
        bags: ids of F features.
        rows: int64 `[F]`, rows of each feature's table.

    Returns:
        bool `[N]`, true where an id is negative or at least the table's rows; None if all are
        inside.
    """
    if _are_inside(bags, rows):
        return None
    limits = torch.repeat_interleave(rows, bags.lengths.sum(1))
    outside = (bags.values < 0) | (bags.values >= limits)
    return outside if bool(outside.any()) else None


def _are_inside(bags: Bags, rows: Tensor) -> bool:
    """Whether the compiled check, one pass without memory of its own, finds nothing amiss."""
    tensors = bags.values, bags.lengths, rows
    if _LIBRARY is None or not all(
        tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in tensors
    ):
        return False
    addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    sizes = [ctypes.c_int64(size) for size in (*bags.lengths.shape, len(bags.values))]
    return bool(_LIBRARY.sharded_infer_inside(*addresses, *sizes))


def locate(bags: Bags, position: int) -> tuple[int, int]:
    """The bag that an id belongs to.

    Args:
        bags: ids of F features and B samples.
        position: index into `bags.values`.

    Returns:
        Feature and sample of that bag.
    """
    ends = torch.cumsum(bags.lengths.reshape(-1), 0)
    bag = int(torch.searchsorted(ends, position, right=True))
    return divmod(bag, bags.lengths.shape[1])
