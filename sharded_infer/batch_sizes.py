"""The batch sizes that towers are run at.

Matrix libraries compile a kernel for each size that they meet: 4 to 5 ms for each layer in bf16 on
the machine that this was measured on (oneDNN), where the product itself takes 0.1. A server meets
every size, so batches are padded to a few, all of which are run before it is ready.
"""

# (from, step): sizes from there on are multiples of the step; at most 12% above 16 are padding,
# and 2% on average above 64.
_STEPS = ((1024, 64), (256, 16), (64, 8), (16, 4), (0, 1))


def padded_size(batch: int) -> int:
    """The size that a batch is run at: itself, or a little more.

    Args:
        batch: samples, at least 1.
    """
    step = next(step for start, step in _STEPS if batch > start)
    return -(-batch // step) * step


def padded_sizes(largest: int) -> list[int]:
    """All sizes that batches of up to `largest` samples are run at."""
    sizes, size = [], 0
    while size < largest:
        size = padded_size(size + 1)
        sizes.append(size)
    return sizes
