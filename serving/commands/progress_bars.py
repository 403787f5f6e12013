"""Progress bars on stderr, if it is a terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sharded_infer.progress import Progress as ProgressCallback

_SECONDS = 0.05  # between updates of a bar


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.speed or (task.total or 0) < 10**6:
            return Text("")
        return Text(f"{task.speed / 1e6:.0f} MB/s")


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """Bars for `Progress` callbacks, one a task."""
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        _RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}
        shown_at = 0.0

        def report(what: str, done: int, total: int) -> None:
            nonlocal shown_at
            if bars.disable:
                return
            now = time.monotonic()
            # Updating a bar costs as much as encoding a chunk.
            if what in tasks and done < total and now - shown_at < _SECONDS:
                return
            shown_at = now
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report
