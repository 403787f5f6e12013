"""Weights whose concatenated rows lie in several sources."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quant.sources.weight_source import ShapedSource, SourceError, WeightSource

Part = tuple[WeightSource, str]


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
