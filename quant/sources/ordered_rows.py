"""Weights with reordered rows."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quant.sources.weight_source import WeightSource, check_range

# Rows this close are read together, and those between dropped: reading that many bytes takes less
# time than another call.
_NEAR = 8
_NEAR_BYTES = 16 * 2**10
_READ_BYTES = 8 * 2**20


class OrderedRows:
    """Weights of another source, some with reordered rows."""

    def __init__(self, source: WeightSource, orders: Mapping[str, NDArray[np.uint32]]) -> None:
        """Reorder weights by uint32 `[rows]`, the source's row at each place; reads no rows."""
        self.description = source.description
        self._source, self._orders = source, orders

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        return self._source.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """As `WeightSource.shape`."""
        shape = self._source.shape(key)
        return (len(self._orders[key]), *shape[1:]) if key in self._orders else shape

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)`, which the source reads in runs of nearby rows."""
        order = self._orders.get(key)
        if order is None or start == stop:
            return self._source.read(key, start, stop)
        check_range(self, key, start, stop)
        asked = order[start:stop].astype(np.int64)
        places = np.argsort(asked, kind="stable")
        rising = asked[places]
        row_bytes = 4 * math.prod(self.shape(key)[1:])
        blocks = rising // max(1, _READ_BYTES // row_bytes)
        is_far = np.diff(rising) > max(_NEAR, _NEAR_BYTES // row_bytes)
        breaks = np.flatnonzero(is_far | (np.diff(blocks) > 0)) + 1
        parts = []
        for run in np.split(rising, breaks):
            first, last = int(run[0]), int(run[-1])
            part = self._source.read(key, first, last + 1)
            parts.append(part[torch.from_numpy(run - first)])
        found = torch.cat(parts)
        back = np.empty_like(places)
        back[places] = np.arange(len(places))
        return found[torch.from_numpy(back)]
