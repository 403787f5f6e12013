"""Progress callbacks of long work."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the units done and the units in all."""

ENCODING = "quantizing"
"""The step in which rows are encoded; its units are bytes of fp32."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Report nothing."""
