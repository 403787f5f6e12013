"""Work in processes of its own: cases compile at once, and one that crashes or hangs ends alone."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

_Case = TypeVar("_Case")
_Found = TypeVar("_Found")
_MOST = 8  # each has a CUDA context
_SECONDS = 75.0  # of a case, with its process's start
# Forked processes cannot use their parent's GPU.
_CONTEXT = multiprocessing.get_context("spawn")


def in_processes(
    work: Callable[[_Case], _Found], cases: Iterable[_Case], seconds: float = _SECONDS
) -> Iterator[tuple[_Case, _Found | Exception]]:
    """Yield cases in order with results or exceptions, from several other processes at once.

    A case without a result after `seconds` is killed.
    """
    listed = list(cases)
    count = max(1, min(_MOST, len(listed), (os.cpu_count() or 1) // 2))
    with ThreadPoolExecutor(count) as pool:
        yield from zip(
            listed, pool.map(lambda case: _in_process(work, case, seconds), listed), strict=True
        )


def _in_process(work: Callable[[Any], Any], case: object, seconds: float) -> Any:
    receiving, sending = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(work, case, sending), daemon=True)
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            return TimeoutError(f"no result after {seconds:g} s")
        return receiving.recv()
    except EOFError:
        process.join()
        return RuntimeError(f"its process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _run(work: Callable[[Any], Any], case: object, sending: Connection) -> None:
    try:
        found = work(case)
    except Exception as error:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    sending.send(found)
