"""Work in separate processes: several compile at once, and a crash affects only one."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

_Case = TypeVar("_Case")
_Found = TypeVar("_Found")
_MOST = 8  # each has a CUDA context


def in_processes(
    work: Callable[[_Case], _Found], cases: Iterable[_Case]
) -> Iterator[tuple[_Case, _Found | Exception]]:
    """Yield cases in order with results or exceptions, from several other processes at once."""
    listed = list(cases)
    count = max(1, min(_MOST, len(listed), (os.cpu_count() or 1) // 2))
    # Forked processes cannot use their parent's GPU.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        futures: list[Any] = [pool.submit(work, case) for case in listed]
        for case, future in zip(listed, futures, strict=True):
            try:
                yield case, future.result()
            except Exception as error:  # the others go on
                yield case, error
