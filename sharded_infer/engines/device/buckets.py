"""Batch sizes ("buckets") that a device runs. Each has its own CUDA graphs, so there are few.

Sizes are powers of two up to 32. Beyond that, each step is at most a quarter of the size: a batch
of 270 samples runs as 288. Padding samples have empty bags. They cost almost nothing in the
lookups, and as much as other samples in the tower.
"""

import bisect

_UP_TO = ((32, None), (128, 16), (512, 32), (1024, 128), (4096, 256))


def device_buckets(largest: int) -> tuple[int, ...]:
    """The sizes for batches of up to `largest` samples, ascending; the last is at least `largest`.

    Args:
        largest: at least 1.
    """
    sizes, size = [1], 1
    for end, step in _UP_TO:
        while size < min(end, largest):
            size = 2 * size if step is None else size + step
            sizes.append(size)
    while size < largest:
        size += 1024
        sizes.append(size)
    return tuple(sizes)


def bucket_of(batch: int, buckets: tuple[int, ...]) -> int | None:
    """The size that a batch is padded to; None if the batch is larger than every bucket.

    Args:
        buckets: ascending.
    """
    place = bisect.bisect_left(buckets, batch)
    return buckets[place] if place < len(buckets) else None
