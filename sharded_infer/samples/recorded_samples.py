"""Samples of recorded requests: all of them, or some of every kind."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappush, heappushpop
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from sharded_infer.inputs.columns import Columns, columns_of
from sharded_infer.samples.record import (
    LENGTHS,
    WEIGHTS,
    RecordedRequest,
    record_files,
    recorded_requests,
)

# A sample's ids or numbers by input.
Cells = dict[str, list[Any]]


def recorded_samples(record: Path, model: str | None = None, rows: int | None = None) -> Columns:
    """Samples of the answered requests of a recording, by column.

    Args:
        rows: as `chosen_samples`; None: all.

    Raises InputError as `record_files` and `recorded_requests`.
    """
    samples: Iterable[Cells]
    if rows is None:
        samples = (cells for request in _answered(record, model) for cells in sample_cells(request))
    else:
        samples = chosen_samples(record, rows, model)
    columns: dict[str, list[Any]] = {}
    number = 0
    for number, cells in enumerate(samples, start=1):
        for name, cell in cells.items():
            # An input that samples before did not have.
            columns.setdefault(name, [None] * (number - 1)).append(cell)
        for column in columns.values():
            column += [None] * (number - len(column))
    for name, column in columns.items():
        if name.endswith(WEIGHTS):
            owners = columns[name.removesuffix(WEIGHTS)]
            columns[name] = [
                [1.0] * len(ids or ()) if weights is None else weights
                for weights, ids in zip(column, owners, strict=True)
            ]
    return columns_of(columns)


def chosen_samples(record: Path, rows: int, model: str | None = None, seed: int = 0) -> list[Cells]:
    """At most `rows` samples, as many of each kind of request as there are.

    Requests are of one kind if their numbers of samples have equally many bits, and all or none
    have ids outside of their tables. Samples of a kind are drawn by chance.

    Raises InputError as `record_files` and `recorded_requests`.
    """
    generator, numbers = np.random.default_rng(seed), count()
    # Of each kind, those with the largest draws; numbers tell equal draws apart.
    kinds: dict[tuple[int, bool], list[tuple[float, int, Cells]]] = defaultdict(list)
    for request in _answered(record, model):
        kept = kinds[request.samples.bit_length(), request.ids_outside > 0]
        draws = generator.random(request.samples)
        if len(kept) == rows and draws.max() < kept[0][0]:
            continue
        for draw, cells in zip(draws.tolist(), sample_cells(request), strict=False):
            if len(kept) < rows:
                heappush(kept, (draw, next(numbers), cells))
            else:
                heappushpop(kept, (draw, next(numbers), cells))
    turns = zip_longest(*(sorted(kept, reverse=True) for _, kept in sorted(kinds.items())))
    chosen = [drawn[2] for turn in turns for drawn in turn if drawn is not None]
    return chosen[:rows]


def sample_cells(request: RecordedRequest) -> Iterator[Cells]:
    """The samples of a request."""
    columns: dict[str, Iterable[Any]] = {}
    for name, numbers in request.inputs.items():
        if name.endswith(LENGTHS) and name.removesuffix(LENGTHS) in request.inputs:
            continue
        lengths = request.inputs.get(f"{name.removesuffix(WEIGHTS)}{LENGTHS}")
        if lengths is None:
            rows = numbers.tolist()
        else:
            ends = np.cumsum(lengths).tolist()
            rows = [
                numbers[end - length : end].tolist()
                for end, length in zip(ends, lengths.tolist(), strict=True)
            ]
        columns[name] = rows * request.samples if len(rows) < request.samples else rows
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _answered(record: Path, model: str | None) -> Iterator[RecordedRequest]:
    for request in recorded_requests(record_files(record, model)):
        if request.is_scored:
            yield request
