"""Progress callbacks of long work."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the units done and the units in all."""

ENCODING = "quantizing"
"""The step in which rows are encoded; its units are bytes of fp32."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Report nothing."""


def summed_progress(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """Takes the units of each step, and reports those done; never more than the total."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        progress(what, done, total)

    return add
