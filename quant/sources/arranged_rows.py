"""Weights whose rows lie in several sources, or in another order in one."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quant.sources.weight_source import ShapedSource, SourceError, WeightSource, check_range

Part = tuple[WeightSource, str]
# Rows this close are read together, and those between dropped: reading that many bytes takes less
# time than another call.
_NEAR = 8
_NEAR_BYTES = 16 * 2**10
_READ_BYTES = 8 * 2**20


class JoinedRows(ShapedSource):
    """Weights of several sources, joined by their first axis."""

    def __init__(self, parts: Mapping[str, Sequence[Part]], description: str) -> None:
        """Join parts without reading rows; SourceError if they differ in more than their rows."""
        self._parts = {key: list(those) for key, those in parts.items()}
        joined: dict[str, tuple[int, ...]] = {}
        for key, those in self._parts.items():
            shapes = [source.shape(name) for source, name in those]
            for (source, name), shape in zip(those, shapes, strict=True):
                if not shape or shape[1:] != shapes[0][1:]:
                    raise SourceError(
                        f"{source.description}: {name!r} is {list(shape)}, expected rows of "
                        f"{list(shapes[0][1:])} as in {those[0][0].description}"
                    )
            joined[key] = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        super().__init__(description, joined)

    def starts(self, key: str) -> list[int]:
        """The first row of each part."""
        starts = [0]
        for source, name in self._parts[key][:-1]:
            starts.append(starts[-1] + source.shape(name)[0])
        return starts

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        """Rows of the first part's dtype; another's is refused."""
        pieces: list[Tensor] = []
        for (source, name), first in zip(self._parts[key], self.starts(key), strict=True):
            top, bottom = max(start, first), min(stop, first + source.shape(name)[0])
            if top < bottom or not pieces:
                top = min(max(top, first), first + source.shape(name)[0])
                piece = source.read(name, top - first, max(top, bottom) - first)
                if pieces and piece.dtype != pieces[0].dtype:
                    raise SourceError(
                        f"{source.description}: {name!r} is {piece.dtype}, expected "
                        f"{pieces[0].dtype} as in the parts before it"
                    )
                pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


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
