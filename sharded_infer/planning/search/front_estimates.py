"""An estimate and a lower bound of plans for a front and its hosts, before planning.

Both take tables as divisible: n ranks take 1/n of the time of one. With s the front's seconds for a
table's bytes, w the seconds on its own ranks and v on those of hosts,

    request = hosts * call_seconds + sum of s + max(launch + sum of w, launch + sum of v)

where s and v are summed over the tables that are asked for, and w over those that are kept.

Tables are ordered by the value of keeping them, s + (1 - l) v - l w, for each byte of memory. The
weight l in [0, 1] is that of the front's own time: 0 if it has time to spare, 1 if hosts do.
"""

import math
from collections.abc import Sequence

import numpy as np

from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.front_traffic import table_traffic
from sharded_infer.planning.search.cost_arrays import Floats, table_costs
from sharded_infer.planning.search.packing import capacities
from sharded_infer.planning.topology import FrontCosts

_ORDERS = np.linspace(0, 1, 5)  # weights of the front's time
_WEIGHTS = np.linspace(0, 1, 17)[:, None, None]
_QUANTILES = np.linspace(0, 1, 9)  # of what a byte of memory saves


class FrontEstimates:
    """Estimates for a model's tables.

    Each of `orders` lists the tables that fit the front's memory successively, best first.
    """

    def __init__(
        self, load: CostModel, front: FrontCosts, own: Sequence[int], asked: Sequence[int]
    ) -> None:
        self._load, self._front = load, front
        self._own, self._asked = list(own), list(asked)
        costs = table_costs(load)
        uses = [load.uses[name] for name in costs.names]
        self._saved = np.array([table_traffic(use, load.batch).seconds(front) for use in uses])
        self._stored = np.array([float(use.table.stored_bytes + use.map_bytes) for use in uses])
        tables, ones = np.arange(len(uses)), np.ones(len(uses))
        dims = costs.dims.astype(np.float64)
        whole = [kind.seconds(tables, ones, dims) for kind in costs.classes]
        # By rank.
        self._whole = np.stack(whole)[costs.class_of_rank]
        self._launch = np.array([load.launch_seconds(one) for one in load.topology.devices])
        self._capacity = capacities(load.topology)
        self._room = float(self._capacity[self._own].sum())
        # Seconds of each side, if all its ranks share.
        self._far = self._whole[self._asked].min(0) / len(self._asked)
        self._near = np.zeros(len(uses))
        if self._own:
            self._near = self._whole[self._own].min(0) / len(self._own)
        self._fits = [self._fitting(weight) for weight in _ORDERS]
        self.orders = [[costs.names[table] for table in fits] for fits in self._fits]

    def _fitting(self, weight: float) -> list[int]:
        worth = self._saved + (1 - weight) * self._far - weight * self._near
        room, found = self._room, []
        for table in np.argsort(-worth / self._stored, kind="stable").tolist():
            if self._stored[table] <= room:
                found.append(table)
                room -= self._stored[table]
        return found

    def requests(self, order: int, asked: Sequence[int]) -> Floats:
        """Estimated seconds of a request for each number of kept tables, `[tables + 1]`.

        Infinity where hosts have no room for the others. `asked` are ranks of the hosts that are
        asked.
        """
        fits, ranks = self._fits[order], list(asked)
        hosts = len({self._load.topology.devices[rank].host for rank in ranks})
        stored = _others(self._stored, fits)
        away = self._front.call_seconds * hosts + _others(self._saved, fits)
        seconds = np.zeros(len(fits) + 1)
        for part, few in ((_kept, self._own), (_others, ranks)):
            if few:
                one = part(1 / (1 / self._whole[few]).sum(0), fits)
                busy = self._launch[few].min() + one
                seconds = np.maximum(seconds, np.where(one > 0, busy, 0.0))
        has_room = stored <= self._capacity[ranks].sum()
        result: Floats = np.where(has_room, seconds + np.where(stored > 0, away, 0.0), np.inf)
        return result

    def bound(self) -> float:
        """A lower bound on the seconds of a request, over all plans.

        Lagrangian duality: for any weight l in [0, 1] of the front's ranks and price m >= 0 of a
        byte of their memory, with the least w and v over the ranks of each side,

            request >= call_seconds + (1 - l) launch - m * memory
                       + sum over tables of min(l w + m bytes, s + (1 - l) v)

        if any host is asked, and launch + sum of w if none is.
        """
        launch, call = float(self._launch[self._asked].min()), self._front.call_seconds
        if not self._own:
            return call + launch + float((self._saved + self._far).sum())
        alone = math.inf
        if self._stored.sum() <= self._room:
            alone = float(self._launch[self._own].min() + self._near.sum())
        prices, rents = np.zeros(1), np.zeros(1)
        if np.isfinite(self._room):
            prices = np.append(prices, np.quantile(self._saved / self._stored, _QUANTILES))
            rents = prices * self._room
        kept = _WEIGHTS * self._near + prices[:, None] * self._stored
        least = np.minimum(kept, self._saved + (1 - _WEIGHTS) * self._far).sum(2)
        dual = least - rents + (1 - _WEIGHTS[:, :, 0]) * launch
        return min(alone, call + float(dual.max()))


def _kept(of_table: Floats, fits: list[int]) -> Floats:
    """Sums over the first n fitting tables."""
    return np.concatenate([[0.0], np.cumsum(of_table[fits])])


def _others(of_table: Floats, fits: list[int]) -> Floats:
    """Sums over all others; exactly zero where there are none."""
    left = np.ones(len(of_table), bool)
    left[fits] = False
    after = np.cumsum(of_table[fits][::-1])[::-1]
    result: Floats = np.append(after, 0.0) + of_table[left].sum()
    return result
