"""Choice of the tables that every rank holds."""

import numpy as np

from sharded_infer.planning.search.cost_arrays import Floats, Integers, TableCosts

# Share of the smallest rank's memory (or of an even part of all tables) for replicated tables.
REPLICA_SHARE = 0.05


def choose_replicas(costs: TableCosts, capacity: Floats) -> tuple[Integers, float]:
    """Tables to replicate: those that save most sending for each byte on every rank.

    A replica's vectors stay on its device, which has a tower. CPU ranks write directly into the
    tower's input, so nothing is saved and nothing is replicated. Also returns an upper bound on the
    seconds that any choice within the memory can save in all (the fractional knapsack's optimum).
    """
    ranks = len(costs.class_of_rank)
    (first, *others) = costs.classes
    # Replicas serve equal parts, so a slow class of devices would delay the rest.
    if ranks < 2 or others:
        return np.empty(0, np.int64), 0.0
    tables = np.arange(len(costs.names))
    dims = costs.dims.astype(np.float64)
    saved = dims * (first.per_column - first.per_column_kept)
    stored = costs.bytes(tables, costs.rows.astype(np.float64), dims)
    room = REPLICA_SHARE * min(float(capacity.min()), float(stored.sum()) / ranks)
    # Replicas must never displace the other tables.
    spare = float(capacity.sum() - stored.sum()) / ranks
    room = min(room, max(0.0, spare / 2))
    # Rounding leaves tiny positive savings where the link costs nothing.
    useful = tables[saved > 1e-6 * dims * first.per_column]
    if not len(useful):
        return np.empty(0, np.int64), 0.0
    order = useful[np.lexsort((useful, -(saved[useful] / stored[useful])))]
    chosen = order[np.cumsum(stored[order]) <= room]
    gain = float(saved[chosen].sum())
    if len(chosen) < len(order):
        following = order[len(chosen)]
        gain += float(saved[following] * (room - stored[chosen].sum()) / stored[following])
    return chosen, gain
