"""Answered requests, counted as compiled code counts calls."""

import time
from array import array
from collections.abc import Sequence

from serving.abi import counting
from serving.metrics.version_metrics import VersionMetrics

# A request: samples; seconds of decode, queue, lookup, tower, encode and the whole; ids that were
# out of range or unknown.
Answered = tuple[int, float, float, float, float, float, float, int]


def count_cells(addresses: tuple[int, int], requests: Sequence[Answered], now: float) -> None:
    """Counts requests in the cells of `VersionMetrics.answered_cells`, at `now` since 1970."""
    packed = array("d", (number for request in requests for number in request))
    cells, counted = addresses[0], counting.AnsweredCells.from_address(addresses[1])
    counting.count_answered(cells, counted, packed.buffer_info()[0], len(requests), now)


def count_answered(version: VersionMetrics, requests: Sequence[Answered]) -> None:
    """Counts the requests of one batch, and the batch."""
    with version.lock:
        count_cells(version.answered_cells, requests, time.time())
    _, _, _, lookup, tower, _, _, _ = requests[0]
    version.answered(
        samples=sum(request[0] for request in requests),
        decode=sum(request[1] for request in requests),
        infer=lookup + tower,
        encode=sum(request[5] for request in requests),
    )
