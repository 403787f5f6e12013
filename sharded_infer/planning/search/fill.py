"""Filling of ranks to a target time, one after another, cutting the item that exceeds it.

For few, heavy tables, where whole items leave ranks uneven. As in McNaughton's rule for preemptible
jobs (1959), at most one item is cut for each rank. Since a cut costs, each rank is first given
whole items, and the item that loses least is cut to fill the rest.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sharded_infer.planning.search.packing import Packing, Rectangle

_HALVINGS = 24
_WORTH = 0.5  # a cut must bring at least this part of the room it fills as useful work


def fill(packing: Packing, items: list[int], low: float, high: float) -> Packing | None:
    """Place items so that the slowest rank is as fast as filling allows.

    `packing` stays unchanged; `low` is a lower bound on the seconds of all plans, `high` the
    seconds of a known plan. Returns None if filling does not beat `high`.
    """
    best = None
    for _ in range(_HALVINGS):
        if high - low <= 1e-4 * low:
            break
        middle = (low + high) / 2
        found = _fill_to(packing, items, middle)
        if found is None:
            low = middle
        else:
            best, high = found, float(found.busy.max())
    return best


def _fill_to(packing: Packing, items: list[int], brim: float) -> Packing | None:
    trial = packing.copy()
    left = list(items)
    for rank in range(len(trial.busy)):
        while left:
            room = brim - float(trial.busy[rank])
            space = float(trial.capacity[rank] - trial.held[rank])
            costs = trial.seconds_on(left, rank)
            fits = (costs <= room) & (trial.bytes[left] <= space)
            # Items heavier than a whole rank are cut first: their cuts are unavoidable.
            if fits.any() and costs.max() <= brim:
                index = int(np.where(fits, costs, -1.0).argmax())
                trial.place(left.pop(index), rank)
                continue
            _top_up(trial, left, rank, room, space)
            break
        if not left:
            return trial
    return None


def _top_up(trial: Packing, left: list[int], rank: int, room: float, space: float) -> None:
    """Fill the rest of a rank's target time with a part of the item that loses least."""
    best: tuple[float, int, Rectangle, Rectangle] | None = None
    for item in left:
        rectangle = trial.rectangles[item]
        whole = float(trial.seconds_on([item], rank)[0])
        for part, rest in _cuts(trial, rectangle, rank, room):
            seconds = trial.cost_of([part, rest])
            size = trial.bytes_of([part])
            useful = whole - float(seconds[1])
            if seconds[0] > room * (1 + 1e-9) or size[0] > space or useful < _WORTH * room:
                continue
            lost = float(seconds.sum()) - whole + (room - float(seconds[0]))
            if best is None or lost < best[0]:
                best = (lost, item, part, rest)
    if best is None:
        return
    _, item, part, rest = best
    new_part, new_rest = trial.add([part, rest]).tolist()
    left[left.index(item)] = new_rest
    trial.place(new_part, rank)
    trial.log.append(f"{trial.name(item)}: cut, a part of it fills rank {rank}")


def _cuts(
    trial: Packing, rectangle: Rectangle, rank: int, room: float
) -> list[tuple[Rectangle, Rectangle]]:
    found = []
    step = int(trial.costs.column_step[rectangle.table])
    largest = (rectangle.columns - 1) // step
    columns = _most(largest, lambda n: _cost(trial, _first_columns(rectangle, n * step)[0]), room)
    if columns:
        found.append(_first_columns(rectangle, columns * step))
    rows = _most(rectangle.rows - 1, lambda n: _cost(trial, _first_rows(rectangle, n)[0]), room)
    if rows:
        found.append(_first_rows(rectangle, rows))
    return found


def _most(largest: int, cost: Callable[[int], float], room: float) -> int:
    low, high = 0, largest
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _cost(trial: Packing, rectangle: Rectangle) -> float:
    return float(trial.cost_of([rectangle])[0])


def _first_columns(rectangle: Rectangle, columns: int) -> tuple[Rectangle, Rectangle]:
    middle = rectangle.first_column + columns
    return replace(rectangle, last_column=middle), replace(rectangle, first_column=middle)


def _first_rows(rectangle: Rectangle, rows: int) -> tuple[Rectangle, Rectangle]:
    middle = rectangle.first_row + rows
    return replace(rectangle, last_row=middle), replace(rectangle, first_row=middle)
