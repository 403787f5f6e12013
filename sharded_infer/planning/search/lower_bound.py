"""A lower bound on the time of the slowest device, over all plans."""

import numpy as np
from numpy.typing import NDArray

from sharded_infer.planning.search.cost_arrays import Floats, TableCosts
from sharded_infer.planning.search.replicate import REPLICA_SHARE

_STEPS = 60


def lower_bound(costs: TableCosts, capacity: Floats, kept_gain: float) -> float:
    """A lower bound on the seconds of the slowest device.

    With one class of devices: the least T for which all work fits, n (T - floor) >= sum of each
    table's least work at T. A table whose whole cost exceeds T - floor must be cut, and cuts cost:
    a rectangle with the part a of a table's cells, share s of its ids and k of its D columns (s k =
    a D) costs a D c + s P + k Q, of which s P + k Q >= 2 sqrt(a D P Q), or its value at the nearer
    end of a <= s <= 1. That is concave in a, so work is least with as many of the largest parts
    that fit T as there can be, and one for the rest. Replicas save at most `kept_gain` seconds in
    all.

    With several classes, Lagrangian duality: for any weights l_k >= 0 of the classes' time with
    sum(l_k n_k) = 1 and m_k >= 0 of their memory,

        T >= sum over tables of min over k (l_k seconds_ik + m_k bytes_i) - sum_k m_k n_k capacity_k

    (weak duality of min T subject to sum_i seconds_ik x_ik <= n_k T and sum_i bytes_i x_ik <= n_k
    capacity_k). `capacity` is in bytes of each rank. Either way a table cannot be cut into more
    parts than it has rows and columns.
    """
    floor = min(device.launch_seconds for device in costs.devices)
    if not costs.names:
        return floor
    divided = _divided(costs, capacity, kept_gain)
    if len(costs.classes) == 1:
        divided = _with_cuts(costs, divided, kept_gain)
    return floor + max(divided, _alone(costs))


def _with_cuts(costs: TableCosts, least: float, kept_gain: float) -> float:
    ranks = len(costs.class_of_rank)
    low, high = least, float(_whole(costs).sum()) + least
    for _ in range(60):
        middle = (low + high) / 2
        if float(_least_work(costs, middle).sum()) - kept_gain > ranks * middle:
            low = middle
        else:
            high = middle
        if high - low <= 1e-7 * high:
            break
    return low


def _least_work(costs: TableCosts, seconds: float) -> Floats:
    """Least seconds of each table if no part of it may exceed `seconds`."""
    (kind,) = costs.classes
    dims = costs.dims.astype(np.float64)
    whole = kind.per_id + dims * (kind.per_id_column + kind.per_column)
    work = whole.copy()
    # Replicas cost less than cuts; small tables may have them, so only others are charged.
    large = np.flatnonzero(whole > seconds)
    if len(large):
        kept = (whole - dims * (kind.per_column - kind.per_column_kept))[large]
        parts = [a[large] for a in (kind.per_id, dims * kind.per_id_column, dims * kind.per_column)]
        low, high = np.zeros(len(large)), np.ones(len(large))
        for _ in range(50):
            middle = (low + high) / 2
            fits = _part_seconds(middle, *parts) <= seconds
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        count = np.floor(1 / np.maximum(high, 1e-12))
        rest = np.maximum(0.0, 1 - count * high)
        cut = count * _part_seconds(high, *parts) + np.where(
            rest > 0, _part_seconds(rest, *parts), 0.0
        )
        work[large] = np.where(_may_replicate(costs)[large], kept, np.maximum(cut, whole[large]))
    return work


def _part_seconds(part: Floats, by_id: Floats, by_cell: Floats, by_column: Floats) -> Floats:
    """Least seconds of a rectangle with a part of a table's cells; all arrays `[tables]`."""
    share = np.sqrt(part * by_column / np.maximum(by_id, 1e-300)).clip(part, 1.0)
    result: Floats = part * by_cell + share * by_id + part / np.maximum(share, 1e-300) * by_column
    return result


def _may_replicate(costs: TableCosts) -> NDArray[np.bool_]:
    tables = np.arange(len(costs.names))
    stored = costs.bytes(tables, costs.rows.astype(np.float64), costs.dims.astype(np.float64))
    fits: NDArray[np.bool_] = stored <= REPLICA_SHARE * stored.sum() / len(costs.class_of_rank)
    return fits


def _whole(costs: TableCosts) -> Floats:
    tables = np.arange(len(costs.names))
    dims = costs.dims.astype(np.float64)
    return np.stack([c.seconds(tables, np.ones(len(tables)), dims) for c in costs.classes])


def _divided(costs: TableCosts, capacity: Floats, kept_gain: float) -> float:
    seconds = _whole(costs)
    counts = np.bincount(costs.class_of_rank, minlength=len(costs.classes)).astype(np.float64)
    if len(counts) == 1:
        return max(0.0, float(seconds.sum()) - kept_gain) / float(counts[0])
    tables = np.arange(len(costs.names))
    stored = costs.bytes(tables, costs.rows.astype(np.float64), costs.dims.astype(np.float64))
    room = np.array([capacity[costs.class_of_rank == k].sum() for k in range(len(counts))])
    limited = np.isfinite(room)
    # Projected subgradient ascent; every step's value is a valid bound, so the best is kept.
    time_weights = np.full(len(counts), 1 / counts.sum())
    memory_weights = np.zeros(len(counts))
    best = 0.0
    for step in range(1, _STEPS + 1):
        prices = time_weights[:, None] * seconds + memory_weights[:, None] * stored
        chosen = prices.argmin(axis=0)
        rent = float((memory_weights * np.where(limited, room, 0)).sum())
        value = float(prices.min(axis=0).sum()) - rent
        best = max(best, value - kept_gain * float(time_weights.max()))
        busy = np.array([seconds[k, chosen == k].sum() for k in range(len(counts))])
        used = np.array([stored[chosen == k].sum() for k in range(len(counts))])
        rate = 0.5 / step**0.5
        time_weights = time_weights * np.exp(rate * (busy / counts / max(busy.max(), 1e-300)))
        time_weights /= (time_weights * counts).sum()
        over = np.where(limited, used - np.where(limited, room, 0), 0.0)
        scale = value / max(stored.sum(), 1.0)
        memory_weights = np.maximum(0.0, memory_weights + rate * scale * over / room.clip(min=1))
        memory_weights = np.where(limited, memory_weights, 0.0)
    return best


def _alone(costs: TableCosts) -> float:
    # Parts of one table sum to at least the whole, so the largest is at least an even part.
    ranks = len(costs.class_of_rank)
    dims = costs.dims.astype(np.float64)
    parts = np.minimum(ranks, costs.rows * -(-costs.dims // costs.column_step))
    whole = _whole(costs).min(axis=0) / parts
    kept = np.stack(
        [c.per_id + dims * (c.per_id_column + c.per_column_kept) for c in costs.classes]
    )
    return float(np.minimum(whole, kept.min(axis=0) / ranks).max(initial=0.0))
