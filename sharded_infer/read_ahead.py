"""Reading a remote object in order while its next parts are already on their way."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

_PART_BYTES = 16 * 2**20
_AHEAD = 4  # parts on their way: one connection of an object store is slower than a disk


def read_parts(read: Callable[[int, int], bytes], begin: int, end: int) -> Iterator[bytes]:
    """The bytes of a range, part by part.

    Args:
        read: reads bytes `[begin, end)`; called from several threads.
        begin: the first byte.
        end: behind the last one.

    Yields:
        Parts in order; a short one, if the object ends before, is the last.
    """
    if begin >= end:
        return
    starts = iter(range(begin, end, _PART_BYTES))
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="sharded_infer-read") as threads:
        coming: deque[tuple[int, Future[bytes]]] = deque()

        def ask() -> None:
            if (start := next(starts, None)) is not None:
                stop = min(start + _PART_BYTES, end)
                coming.append((stop - start, threads.submit(read, start, stop)))

        try:
            for _ in range(_AHEAD):
                ask()
            while coming:
                expected, part = coming.popleft()
                content = part.result()
                ask()
                yield content
                if len(content) != expected:
                    return
        finally:
            for _, part in coming:
                part.cancel()
