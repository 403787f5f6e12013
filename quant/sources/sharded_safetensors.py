"""Trained weights in several safetensors files under one index."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from quant.sources.weight_source import (
    SafetensorsSource,
    SourceError,
    check_key,
    file_beside,
    read_bounded,
)


class ShardedSafetensorsSource:
    """Weights in the safetensors files of an index, as Hugging Face writes them."""

    def __init__(self, index: Path) -> None:
        """Open an index with its `weight_map`; SourceError if it, a file or a weight is missing."""
        self.description = str(index)
        self._by_key: dict[str, SafetensorsSource] = {}
        opened: dict[str, tuple[SafetensorsSource, set[str]]] = {}
        for key, name in _weight_map(index).items():
            if not isinstance(name, str) or not name.endswith(".safetensors"):
                raise SourceError(
                    f"{index}: {key!r}: expected the name of a .safetensors file, got {name!r:.200}"
                )
            if name not in opened:
                source = SafetensorsSource(file_beside(index, name, f"{index}: {key!r}"))
                opened[name] = source, set(source.keys())
            source, keys = opened[name]
            if key not in keys:
                raise SourceError(f"{index}: says that {name} holds {key!r}, which it does not")
            self._by_key[key] = source

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        return self._by_key.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """As `WeightSource.shape`."""
        return self._holding(key).shape(key)

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` in their own dtype."""
        return self._holding(key).read(key, start, stop)

    def _holding(self, key: str) -> SafetensorsSource:
        check_key(self, self._by_key, key)
        return self._by_key[key]


def _weight_map(index: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_bounded(index))
    # Too deeply nested brackets raise a RecursionError.
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{index}: not a readable index: {error}") from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{index}: expected a 'weight_map' of weights to files, found none")
    return weight_map
