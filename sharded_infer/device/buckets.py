"""The batch sizes that a device runs: each has graphs of its own, so they are few.

Powers of two up to 32, then steps of a quarter of the size or less: of 270 samples 288 are run.
Samples beyond a batch are empty bags, which cost a device next to nothing in the lookups and their
share in the tower.
"""

import bisect

_UP_TO = ((32, None), (128, 16), (512, 32), (1024, 128), (4096, 256))


def device_buckets(largest: int) -> tuple[int, ...]:
    """The sizes for batches of up to `largest` samples, ascending; the last is at least that.

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
    """The size that a batch is run at; None: it is larger than all.

    Args:
        batch: samples.
        buckets: ascending.
    """
    place = bisect.bisect_left(buckets, batch)
    return buckets[place] if place < len(buckets) else None
