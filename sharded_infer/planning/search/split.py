"""Cuts of items, to balance time or memory, or to fit at all."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sharded_infer.planning.search.cost_arrays import Floats, Integers
from sharded_infer.planning.search.packing import Packing, Rectangle

_SMALL = 1e-9


@dataclass(frozen=True, slots=True)
class _Cut:
    worst: float  # the larger load of both ranks afterwards
    item: int
    by_columns: bool
    amount: int  # columns or rows given


def split_for_seconds(packing: Packing, target: float, tolerance: float, *, steps: int) -> None:
    """Give parts of the slowest rank's items to the fastest, within memory limits.

    Stops at `target` seconds, when the slowest rank is within `tolerance` (relative) of the mean,
    or after `steps` cuts.
    """
    for _ in range(steps):
        giver, taker = int(packing.busy.argmax()), int(packing.busy.argmin())
        mean = float(packing.busy.mean())
        enough = max(target, mean * (1 + tolerance))
        if packing.busy[giver] <= enough or not packing.items[giver]:
            return
        # To the mean leaves the least behind; halfway is best where the cut itself costs much.
        halfway = (packing.busy[giver] - packing.busy[taker]) / 2
        cuts = [
            cut
            for wanted in (min(packing.busy[giver] - mean, mean - packing.busy[taker]), halfway)
            if (cut := _best_cut(packing, giver, taker, wanted, by_bytes=False, limit=np.inf))
        ]
        cut = min(cuts, key=lambda c: c.worst, default=None)
        if cut is None or cut.worst >= packing.busy[giver] * (1 - _SMALL):
            return
        _apply(packing, cut, giver, taker, "was the slowest")


def split_for_bytes(packing: Packing, limit: float, tolerance: float, *, steps: int) -> None:
    """Give parts of the fullest rank's items to the emptiest, without exceeding `limit` seconds.

    Stops when the fullest rank is within `tolerance` (relative) of the mean, or after `steps` cuts.
    """
    for _ in range(steps):
        giver = int(packing.held.argmax())
        mean = float(packing.held.mean())
        if packing.held[giver] <= mean * (1 + tolerance) or not packing.items[giver]:
            return
        for taker in np.argsort(packing.held, kind="stable")[:4].tolist():
            wanted = min(packing.held[giver] - mean, mean - packing.held[taker])
            if wanted <= 0:
                return
            cut = _best_cut(packing, giver, taker, wanted, by_bytes=True, limit=limit)
            if cut is not None and cut.worst < packing.held[giver] * (1 - _SMALL):
                _apply(packing, cut, giver, taker, "held the most")
                break
        else:
            return


def split_to_fit(packing: Packing, item: int) -> bool:
    """Cut an unplaced item over the emptiest ranks; False if none has free memory.

    By rows; by columns, if that suffices, for a table whose ids the front would otherwise map.
    """
    rectangle = packing.rectangles[item]
    map_bytes = float(packing.costs.map_bytes[rectangle.table])
    if packing.costs.is_cut_badly[rectangle.table] and _columns_to_fit(packing, item):
        return True
    row_bytes = (packing.bytes[item] - map_bytes) / rectangle.rows
    room = packing.capacity - packing.held - map_bytes
    rows_free = np.floor(np.maximum(room, 0) / row_bytes).astype(np.int64)
    if int(rows_free.sum()) < rectangle.rows:
        return False
    first, parts = rectangle.first_row, []
    for rank in np.argsort(-rows_free, kind="stable").tolist():
        rows = min(int(rows_free[rank]), rectangle.last_row - first)
        if rows == 0:
            break
        parts.append((rank, replace(rectangle, first_row=first, last_row=first + rows)))
        first += rows
    added = packing.add([part for _, part in parts])
    for (rank, _), part_item in zip(parts, added.tolist(), strict=True):
        packing.place(part_item, rank)
    packing.log.append(
        f"{packing.name(item)}: fits no rank whole, cut by rows over ranks "
        f"{', '.join(str(rank) for rank, _ in parts)}"
        + ("; the front maps its ids" if packing.costs.is_cut_badly[rectangle.table] else "")
    )
    return True


def _columns_to_fit(packing: Packing, item: int) -> bool:
    rectangle = packing.rectangles[item]
    step = int(packing.costs.column_step[rectangle.table])
    size = -(-rectangle.columns // step)
    ranks = np.argsort(packing.held - packing.capacity, kind="stable").tolist()
    for count in range(2, min(size, len(ranks)) + 1):
        ends = [round(i * size / count) * step for i in range(count + 1)]
        parts = [_part(rectangle, a, b, by_columns=True) for a, b in pairwise(ends)]
        chosen, needed = ranks[:count], packing.bytes_of(parts)
        if (packing.held[chosen] + needed <= packing.capacity[chosen]).all():
            for rank, part in zip(chosen, packing.add(parts).tolist(), strict=True):
                packing.place(part, rank)
            packing.log.append(
                f"{packing.name(item)}: fits no rank whole, cut by columns over ranks "
                f"{', '.join(map(str, chosen))}"
            )
            return True
    return False


def cut_evenly(packing: Packing, item: int, room: float) -> list[int]:
    """Cut an unplaced item into equal parts of at most `room` seconds each, if possible.

    Returns the item itself if it is small enough.
    """
    seconds = float(packing.seconds[:, item].min())
    if seconds <= room or room <= 0:
        return [item]
    rectangle = packing.rectangles[item]
    step = int(packing.costs.column_step[rectangle.table])
    best: list[Rectangle] = []
    best_total = np.inf
    # By rows, a front would have to map raw ids.
    for by_columns in (True,) if packing.costs.is_cut_badly[rectangle.table] else (True, False):
        size = -(-rectangle.columns // step) if by_columns else rectangle.rows
        unit = step if by_columns else 1
        for count in range(2, min(size, 4 * len(packing.busy)) + 1):
            ends = [round(i * size / count) * unit for i in range(count + 1)]
            parts = [_part(rectangle, a, b, by_columns) for a, b in pairwise(ends)]
            costs = packing.cost_of(parts)
            if costs.max() <= room:
                if costs.sum() < best_total:
                    best, best_total = parts, float(costs.sum())
                break
    if not best:
        return [item]
    packing.log.append(f"{packing.name(item)}: cut into {len(best)} even parts, it is heavy")
    return [int(part) for part in packing.add(best)]


def _part(rectangle: Rectangle, start: int, stop: int, by_columns: bool) -> Rectangle:
    if by_columns:
        last = min(rectangle.first_column + stop, rectangle.last_column)
        return replace(rectangle, first_column=rectangle.first_column + start, last_column=last)
    return replace(
        rectangle,
        first_row=rectangle.first_row + start,
        last_row=rectangle.first_row + stop,
    )


def _best_cut(
    packing: Packing, giver: int, taker: int, wanted: float, *, by_bytes: bool, limit: float
) -> _Cut | None:
    items = np.array(packing.items[giver], np.int64)
    best: _Cut | None = None
    for by_columns in (True, False):
        amounts = _amounts(packing, items, giver, wanted, by_columns=by_columns, by_bytes=by_bytes)
        possible = amounts > 0
        if not possible.any():
            continue
        chosen, given = items[possible], amounts[possible]
        after = _loads_after(packing, chosen, given, giver, taker, by_columns=by_columns)
        giver_busy, taker_busy, giver_held, taker_held = after
        worst = (
            np.maximum(giver_held, taker_held) if by_bytes else np.maximum(giver_busy, taker_busy)
        )
        allowed = taker_held <= packing.capacity[taker]
        allowed &= taker_held - packing.held[taker] <= packing.most_moved_bytes
        if by_bytes:
            allowed &= (giver_busy <= limit) & (taker_busy <= limit)
        worst = np.where(allowed, worst, np.inf)
        index = int(worst.argmin())
        if worst[index] < np.inf and (best is None or worst[index] < best.worst):
            best = _Cut(float(worst[index]), int(chosen[index]), by_columns, int(given[index]))
    return best


def _amounts(
    packing: Packing,
    items: Integers,
    giver: int,
    wanted: float,
    *,
    by_columns: bool,
    by_bytes: bool,
) -> Integers:
    """Columns or rows of each item that make up the wanted load; 0 if it cannot be cut so."""
    costs = packing.costs
    tables = np.array([packing.rectangles[i].table for i in items], np.int64)
    columns = np.array([packing.rectangles[i].columns for i in items], np.int64)
    rows = np.array([packing.rectangles[i].rows for i in items], np.int64)
    kind = costs.classes[costs.class_of_rank[giver]]
    share = packing.share[items]
    if by_columns:
        seconds = share * kind.per_id_column[tables] + kind.per_column[tables]
        each = rows * costs.element_bytes[tables] if by_bytes else seconds
        step = costs.column_step[tables]
        amounts = np.floor(wanted / np.maximum(each, 1e-300) / step) * step
        largest = (columns - 1) // step * step
        return np.where(amounts > largest, largest, amounts).astype(np.int64)
    by_id = share * (kind.per_id[tables] + columns * kind.per_id_column[tables])
    each = packing.bytes[items] / rows if by_bytes else by_id / rows
    amounts = np.floor(np.minimum(wanted / np.maximum(each, 1e-300), rows - 1))
    # By rows, a front would have to map raw ids.
    amounts = np.where(costs.is_cut_badly[tables], 0, amounts)
    return np.maximum(amounts, 0).astype(np.int64)


def _loads_after(
    packing: Packing,
    items: Integers,
    amounts: Integers,
    giver: int,
    taker: int,
    *,
    by_columns: bool,
) -> tuple[Floats, Floats, Floats, Floats]:
    costs = packing.costs
    tables = np.array([packing.rectangles[i].table for i in items], np.int64)
    columns = np.array([packing.rectangles[i].columns for i in items], np.float64)
    rows = np.array([packing.rectangles[i].rows for i in items], np.float64)
    share = packing.share[items]
    if by_columns:
        kept_share = given_share = share
        kept = (rows, columns - amounts)
        given = (rows, amounts.astype(np.float64))
    else:
        # An even share suffices for the choice; the new items get their exact one.
        given_share = share * amounts / rows
        kept_share = share - given_share
        kept = (rows - amounts, columns)
        given = (amounts.astype(np.float64), columns)
    giver_class = costs.classes[costs.class_of_rank[giver]]
    taker_class = costs.classes[costs.class_of_rank[taker]]
    before = packing.seconds_on(items, giver)
    giver_busy = packing.busy[giver] - before + giver_class.seconds(tables, kept_share, kept[1])
    taker_busy = packing.busy[taker] + taker_class.seconds(tables, given_share, given[1])
    giver_held = packing.held[giver] - packing.bytes[items] + costs.bytes(tables, *kept)
    taker_held = packing.held[taker] + costs.bytes(tables, *given)
    return giver_busy, taker_busy, giver_held, taker_held


def _apply(packing: Packing, cut: _Cut, giver: int, taker: int, why: str) -> None:
    rectangle = packing.rectangles[cut.item]
    kept, given = _cut_rectangle(rectangle, cut)
    packing.remove(cut.item, giver)
    new_kept, new_given = packing.add([kept, given]).tolist()
    packing.place(new_kept, giver)
    packing.place(new_given, taker)
    unit = "columns" if cut.by_columns else "rows"
    packing.log.append(
        f"{packing.name(cut.item)}: {cut.amount} {unit} given to rank {taker}, because rank "
        f"{giver} {why}"
    )


def _cut_rectangle(rectangle: Rectangle, cut: _Cut) -> tuple[Rectangle, Rectangle]:
    if cut.by_columns:
        middle = rectangle.last_column - cut.amount
        return replace(rectangle, last_column=middle), replace(rectangle, first_column=middle)
    middle = rectangle.last_row - cut.amount
    return replace(rectangle, last_row=middle), replace(rectangle, first_row=middle)
