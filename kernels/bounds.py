"""Which ids lie outside their tables."""

import torch
from torch import Tensor

from kernels.bags import Bags


def out_of_range(bags: Bags, rows: Tensor) -> Tensor | None:
    """Marks ids outside their feature's table.

    Args:
        bags: ids of F features.
        rows: int64 `[F]`, rows of each feature's table.

    Returns:
        bool `[N]`, true where an id is negative or at least the table's rows; None if all are
        inside.
    """
    limits = torch.repeat_interleave(rows, bags.lengths.sum(1))
    outside = (bags.values < 0) | (bags.values >= limits)
    return outside if bool(outside.any()) else None


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
