"""Trained weights in safetensors files."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from quant.sources.file_kind import SAFETENSORS, TEXT, why_unreadable
from quant.sources.weight_source import ShapedSource, SourceError, file_beside, read_bounded


class SafetensorsSource(ShapedSource):
    """Weights in one safetensors file, read from its mapping."""

    def __init__(self, path: Path) -> None:
        """Open the file; SourceError if it is not a safetensors file."""
        self._file: Any
        try:
            # safetensors ships no types. Its handle is released with the source.
            self._file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            reason = why_unreadable(path, SAFETENSORS, error)
            raise SourceError(f"{path}: not a readable safetensors file: {reason}") from error
        keys = self._file.keys()
        super().__init__(str(path), {k: tuple(self._file.get_slice(k).get_shape()) for k in keys})

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        rows: Tensor = self._file.get_slice(key)[start:stop]
        return rows


class ShardedSafetensorsSource(ShapedSource):
    """Weights in the safetensors files of an index, as Hugging Face writes them."""

    def __init__(self, index: Path) -> None:
        """Open an index with its `weight_map`; SourceError if it, a file or a weight is missing."""
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
        super().__init__(str(index), {key: one.shape(key) for key, one in self._by_key.items()})

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """As `WeightSource.read`; messages about rows name the weight's file."""
        self.shape(key)
        return self._by_key[key].read(key, start, stop)


def _weight_map(index: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_bounded(index))
    # Too deeply nested brackets raise a RecursionError.
    except (OSError, ValueError, RecursionError) as error:
        reason = why_unreadable(index, TEXT, error)
        raise SourceError(f"{index}: not a readable index: {reason}") from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{index}: expected a 'weight_map' of weights to files, found none")
    return weight_map
