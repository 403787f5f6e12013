"""Placement and local search of whole items."""

from collections.abc import Iterable

import numpy as np

from sharded_infer.planning.search.cost_arrays import Floats, Integers
from sharded_infer.planning.search.packing import Packing

_PARTNERS = 4  # ranks that the fullest one tries to trade with, emptiest first
_PAIRS = 200_000  # swaps considered at once; beyond, only the largest items are
_DIVIDED = 14  # items of two ranks that are divided in all ways
_EPSILON = 1e-9  # relative; less is rounding, not improvement


def place_greedily(packing: Packing, items: Iterable[int]) -> list[int]:
    """Place items, the largest first, at the least larger of time and memory.

    Longest processing time first (Graham 1969); an item's length is the larger of its time and
    memory, relative to an average rank's. Returns items that fit on no rank whole.
    """
    chosen = np.array(list(items), np.int64)
    if not len(chosen):
        return []
    ranks = len(packing.busy)
    mean_seconds = packing.seconds[:, chosen].min(axis=0).sum() / ranks + packing.busy.mean()
    mean_bytes = packing.bytes[chosen].sum() / ranks + packing.held.mean()
    mean_seconds, mean_bytes = max(mean_seconds, 1e-300), max(mean_bytes, 1.0)
    length = np.maximum(
        packing.seconds[:, chosen].min(axis=0) / mean_seconds, packing.bytes[chosen] / mean_bytes
    )
    order = chosen[np.lexsort((chosen, -length))]
    classes = packing.costs.class_of_rank
    one_class = len(packing.costs.classes) == 1
    left = []
    for item in order.tolist():
        seconds = packing.seconds[0, item] if one_class else packing.seconds[classes, item]
        held = packing.held + packing.bytes[item]
        score = np.maximum((packing.busy + seconds) / mean_seconds, held / mean_bytes)
        score[held > packing.capacity] = np.inf
        rank = int(score.argmin())
        if score[rank] == np.inf:
            left.append(item)
        else:
            packing.place(item, rank)
    return left


def balance_seconds(packing: Packing, target: float, *, steps: int) -> None:
    """Move and swap items of the slowest rank, within memory limits, until its time stops falling.

    Stops at `target` seconds or after `steps` changes.
    """
    for _ in range(steps):
        slowest = int(packing.busy.argmax())
        if packing.busy[slowest] <= target:
            return
        if not _trade(packing, slowest, by_bytes=False, limit=0) and not _redivide(
            packing, slowest
        ):
            return


def balance_bytes(packing: Packing, limit: float, target: float, *, steps: int) -> None:
    """Move and swap items of the fullest rank until its memory stops falling.

    No change makes a rank exceed `limit` seconds or its memory. Stops at `target` bytes or after
    `steps` changes.
    """
    for _ in range(steps):
        fullest = int(packing.held.argmax())
        if packing.held[fullest] <= target or not _trade(
            packing, fullest, by_bytes=True, limit=limit
        ):
            return


def _trade(packing: Packing, giver: int, *, by_bytes: bool, limit: float) -> bool:
    loads = packing.held if by_bytes else packing.busy
    best: tuple[float, int, int, int] | None = None
    for taker in np.argsort(loads, kind="stable")[:_PARTNERS].tolist():
        if taker == giver or not packing.items[giver]:
            continue
        found = _best_change(packing, giver, taker, by_bytes=by_bytes, limit=limit)
        if found is not None and (best is None or found[0] < best[0]):
            best = (*found, taker)
    if best is None or best[0] >= loads[giver] * (1 - _EPSILON):
        return False
    _, given, taken, taker = best
    packing.remove(given, giver)
    packing.place(given, taker)
    if taken >= 0:
        packing.remove(taken, taker)
        packing.place(taken, giver)
    return True


def _redivide(packing: Packing, giver: int) -> bool:
    """Divide the items of two ranks, of few items, optimally; False if none helps."""
    if np.isfinite(packing.most_moved_bytes):
        return False
    for taker in np.argsort(packing.busy, kind="stable").tolist():
        items = np.array([*packing.items[giver], *packing.items[taker]], np.int64)
        if taker == giver or len(items) > _DIVIDED:
            continue
        # Every row is a division: 1 where the item goes to the giver.
        ways = (np.arange(2 ** len(items))[:, None] >> np.arange(len(items))) & 1
        bases = [
            packing.busy[rank] - packing.seconds_on(packing.items[rank], rank).sum()
            for rank in (giver, taker)
        ]
        replicated = packing.held[giver] - packing.bytes[packing.items[giver]].sum()
        giver_busy = bases[0] + ways @ packing.seconds_on(items, giver)
        taker_busy = bases[1] + (1 - ways) @ packing.seconds_on(items, taker)
        giver_held = replicated + ways @ packing.bytes[items]
        taker_held = replicated + (1 - ways) @ packing.bytes[items]
        worst = np.maximum(giver_busy, taker_busy)
        fits = (giver_held <= packing.capacity[giver]) & (taker_held <= packing.capacity[taker])
        worst[~fits] = np.inf
        best = int(worst.argmin())
        if worst[best] < packing.busy[giver] * (1 - _EPSILON):
            for item, to_giver in zip(items.tolist(), ways[best].tolist(), strict=True):
                now = giver if item in packing.items[giver] else taker
                wanted = giver if to_giver else taker
                if now != wanted:
                    packing.remove(item, now)
                    packing.place(item, wanted)
            return True
    return False


def _best_change(
    packing: Packing, giver: int, taker: int, *, by_bytes: bool, limit: float
) -> tuple[float, int, int] | None:
    """The larger load of both ranks after the best change; the item given; the one taken, or -1."""
    given = _largest(packing, giver, by_bytes=by_bytes)
    taken = _largest(packing, taker, by_bytes=by_bytes)
    # A swap with nothing is a move: an extra column of zeros.
    size = packing.bytes
    giver_seconds = _difference(packing.seconds_on(given, giver), packing.seconds_on(taken, giver))
    taker_seconds = _difference(packing.seconds_on(given, taker), packing.seconds_on(taken, taker))
    moved = _difference(size[given], size[taken])
    giver_busy = packing.busy[giver] - giver_seconds
    taker_busy = packing.busy[taker] + taker_seconds
    giver_held = packing.held[giver] - moved
    taker_held = packing.held[taker] + moved
    allowed = (taker_held <= packing.capacity[taker]) & (giver_held <= packing.capacity[giver])
    if np.isfinite(packing.most_moved_bytes):
        both = size[given][:, None] + np.append(size[taken], 0.0)[None, :]
        allowed &= both <= packing.most_moved_bytes
    if by_bytes:
        worst = np.maximum(giver_held, taker_held)
        allowed &= (giver_busy <= limit) & (taker_busy <= limit)
    else:
        worst = np.maximum(giver_busy, taker_busy)
    worst = np.where(allowed, worst, np.inf)
    flat = int(worst.argmin())
    row, column = divmod(flat, worst.shape[1])
    if worst[row, column] == np.inf:
        return None
    other = int(taken[column]) if column < len(taken) else -1
    return float(worst[row, column]), int(given[row]), other


def _difference(given: Floats, taken: Floats) -> Floats:
    result: Floats = given[:, None] - np.append(taken, 0.0)[None, :]
    return result


def _largest(packing: Packing, rank: int, *, by_bytes: bool) -> Integers:
    items = np.array(packing.items[rank], np.int64)
    most = int(_PAIRS**0.5)
    if len(items) <= most:
        return items
    size = packing.bytes[items] if by_bytes else packing.seconds_on(items, rank)
    # The largest candidates fill half the limit, an even sample of the rest the other, for fine
    # tuning.
    order = items[np.argsort(-size, kind="stable")]
    rest = order[most // 2 :]
    return np.concatenate([order[: most // 2], rest[:: max(1, len(rest) // (most // 2))]])
