"""What plans for a front and its hosts take, before they are made: an estimate and a lower bound.

Both take tables as divisible: n ranks take 1/n of the time of one. With s the front's seconds for a
table's bytes, w the seconds on its own ranks and v on those of hosts,

    request = hosts * call_seconds + sum of s + max(launch + sum of w, launch + sum of v)

where s and v are summed over the tables that are asked for, and w over those that are kept.
"""

import math
from collections.abc import Sequence

import numpy as np

from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.front_traffic import table_traffic
from sharded_infer.planning.search.cost_arrays import Floats, table_costs
from sharded_infer.planning.search.packing import capacities
from sharded_infer.planning.topology import FrontCosts

_WEIGHTS = np.linspace(0, 1, 17)[:, None, None]
_QUANTILES = np.linspace(0, 1, 9)  # of what a byte of memory saves


class FrontEstimates:
    """Estimates for a model's tables.

    Attributes:
        order: all tables, those first whose keeping saves the front most seconds a byte of memory.
        fitting: those that its memory holds, in this order.
    """

    def __init__(self, load: CostModel, front: FrontCosts, own: Sequence[int]) -> None:
        """Computes each table's part.

        Args:
            own: the front's ranks.
        """
        self._load, self._front, self._own = load, front, list(own)
        costs = table_costs(load)
        uses = [load.uses[name] for name in costs.names]
        saved = np.array([table_traffic(use, load.batch).seconds(front) for use in uses])
        stored = np.array([float(use.table.stored_bytes) for use in uses])
        order = np.lexsort((np.arange(len(uses)), -saved / stored))
        self.order = [costs.names[index] for index in order]
        self._saved, self._stored = saved[order], stored[order]
        tables, ones = np.arange(len(uses)), np.ones(len(uses))
        whole = [
            kind.seconds(tables, ones, costs.dims.astype(np.float64)) for kind in costs.classes
        ]
        # By rank.
        self._whole = np.stack(whole)[:, order][costs.class_of_rank]
        self._launch = np.array([load.launch_seconds(one) for one in load.topology.devices])
        self._capacity = capacities(load.topology)
        self._room = float(self._capacity[self._own].sum())
        self._fits = _greedily(self._stored, self._room)
        self.fitting = [self.order[index] for index in self._fits]

    def requests(self, asked: Sequence[int]) -> Floats:
        """Estimated seconds of a request for each number of kept tables, `[fitting + 1]`.

        Infinity where hosts have no room for the others.

        Args:
            asked: ranks of the hosts that are asked.
        """
        ranks = list(asked)
        hosts = len({self._load.topology.devices[rank].host for rank in ranks})
        stored = self._others(self._stored)
        away = self._front.call_seconds * hosts + self._others(self._saved)
        seconds = np.zeros(len(self._fits) + 1)
        for part, few in ((self._kept, self._own), (self._others, ranks)):
            if few:
                one = part(1 / (1 / self._whole[few]).sum(0))
                busy = self._launch[few].min() + one
                seconds = np.maximum(seconds, np.where(one > 0, busy, 0.0))
        fits = stored <= self._capacity[ranks].sum()
        result: Floats = np.where(fits, seconds + np.where(stored > 0, away, 0.0), np.inf)
        return result

    def bound(self, asked: Sequence[int]) -> float:
        """A lower bound on the seconds of a request, over all plans.

        Lagrangian duality: for any weight l in [0, 1] of the front's ranks and price m >= 0 of a
        byte of their memory, with the least w and v over the ranks of each side,

            request >= call_seconds + (1 - l) launch - m * memory
                       + sum over tables of min(l w + m bytes, s + (1 - l) v)

        if any host is asked, and launch + sum of w if none is.

        Args:
            asked: ranks of all hosts.
        """
        ranks = list(asked)
        far = self._whole[ranks].min(0) / len(ranks)
        launch = float(self._launch[ranks].min())
        call = self._front.call_seconds
        if not self._own:
            return call + launch + float((self._saved + far).sum())
        near = self._whole[self._own].min(0) / len(self._own)
        alone = math.inf
        if len(self._fits) == len(self.order):
            alone = float(self._launch[self._own].min() + near.sum())
        prices, rents = np.zeros(1), np.zeros(1)
        if np.isfinite(self._room):
            prices = np.append(prices, np.quantile(self._saved / self._stored, _QUANTILES))
            rents = prices * self._room
        kept = _WEIGHTS * near + prices[:, None] * self._stored
        least = np.minimum(kept, self._saved + (1 - _WEIGHTS) * far).sum(2)
        dual = least - rents + (1 - _WEIGHTS[:, :, 0]) * launch
        return min(alone, call + float(dual.max()))

    def _kept(self, of_table: Floats) -> Floats:
        """Sums over the first n fitting tables."""
        return np.concatenate([[0.0], np.cumsum(of_table[self._fits])])

    def _others(self, of_table: Floats) -> Floats:
        """Sums over all others; exactly zero where there are none."""
        left = np.ones(len(of_table), bool)
        left[self._fits] = False
        after = np.cumsum(of_table[self._fits][::-1])[::-1]
        result: Floats = np.append(after, 0.0) + of_table[left].sum()
        return result


def _greedily(stored: Floats, room: float) -> list[int]:
    found = []
    for index, size in enumerate(stored.tolist()):
        if size <= room:
            found.append(index)
            room -= size
    return found
