"""Ids outside their tables."""

import torch
from torch import Tensor

from kernels.abi.lookup import inside
from kernels.bags import Bags


def out_of_range(bags: Bags, rows: Tensor) -> Tensor | None:
    """Marks ids that are negative or at least their table's number of rows.

    `rows` is int64 `[F]`. Returns bool `[N]`; None if all ids are inside.
    """
    if are_inside(bags, rows):
        return None
    limits = torch.repeat_interleave(rows, bags.lengths.sum(1))
    outside = (bags.values < 0) | (bags.values >= limits)
    return outside if bool(outside.any()) else None


def are_inside(bags: Bags, rows: Tensor) -> bool:
    """True if the compiled check, one pass without extra memory, finds all ids inside.

    `rows` is int64 `[F]`. False also for lengths that do not sum to the ids, and for arrays with
    gaps.
    """
    tensors = bags.values, bags.lengths, rows
    if not all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in tensors):
        return False
    addresses = (tensor.data_ptr() for tensor in tensors)
    return bool(inside(*addresses, *bags.lengths.shape, len(bags.values)))


def locate(bags: Bags, position: int) -> tuple[int, int]:
    """Feature and sample of the bag that holds the id `bags.values[position]`."""
    ends = torch.cumsum(bags.lengths.reshape(-1), 0)
    bag = int(torch.searchsorted(ends, position, right=True))
    return divmod(bag, bags.lengths.shape[1])
