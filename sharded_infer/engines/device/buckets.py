"""Batch sizes ("buckets") that a device runs. Each has its own CUDA graphs, so there are few.

Powers of two up to 32; then each step is at most a quarter of the size: 270 samples run as 288.
Padding samples have empty bags: nearly free in the lookups, in the tower as costly as others.
"""

import bisect

_UP_TO = ((32, None), (128, 16), (512, 32), (1024, 128), (4096, 256))


def device_buckets(largest: int) -> tuple[int, ...]:
    """Ascending sizes for batches of up to `largest` samples, at least 1; they reach `largest`."""
    sizes, size = [1], 1
    for end, step in _UP_TO:
        while size < min(end, largest):
            size = 2 * size if step is None else size + step
            sizes.append(size)
    while size < largest:
        size += 1024
        sizes.append(size)
    return tuple(sizes)


def bucket_of(batch: int, buckets: tuple[int, ...]) -> int:
    """The size that a batch is padded to, of ascending buckets; its own if larger than all."""
    place = bisect.bisect_left(buckets, batch)
    return buckets[place] if place < len(buckets) else batch
