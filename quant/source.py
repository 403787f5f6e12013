"""Trained weights, read a range of rows at a time, whatever they are kept in."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from kernels.errors import InputError

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class SourceError(InputError):
    """Trained weights that cannot be read, or do not hold what is asked for."""


@runtime_checkable
class WeightSource(Protocol):
    """Named 2-D weights of which any range of rows can be read."""

    description: str

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        ...

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one weight."""
        ...

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` (of the first axis) as they are stored, in their own dtype."""
        ...


class TensorSource:
    """Weights held as tensors: a state dict, possibly mapped from its file."""

    def __init__(self, tensors: Mapping[str, Tensor], description: str = "the state dict") -> None:
        """Keeps the mapping; nothing is copied."""
        self.description = description
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        return self._tensors.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one weight."""
        return tuple(self._tensors[key].shape)

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` in their own dtype."""
        return self._tensors[key][start:stop].cpu()


class SafetensorsSource:
    """Weights in one safetensors file, read from its mapping."""

    def __init__(self, path: Path) -> None:
        """Opens the file.

        Raises:
            SourceError: it is not a safetensors file.
        """
        self.description = str(path)
        self._file: Any
        try:
            # safetensors ships no types. Its handle is released with the source.
            self._file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{path}: not a readable safetensors file: {error}") from error

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        keys: list[str] = self._file.keys()
        return keys

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one weight."""
        return tuple(self._file.get_slice(key).get_shape())

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` in their own dtype."""
        rows: Tensor = self._file.get_slice(key)[start:stop]
        return rows


def open_weights(path: Path) -> WeightSource:
    """Opens a checkpoint file.

    Args:
        path: a `.safetensors` file, or a `.pt`, `.pth` or `.bin` file that `torch.save` wrote of a
            state dict (alone, or under a `state_dict` or `model` key). The latter are mapped and
            read with `weights_only=True`: nothing in them is run.

    Raises:
        SourceError: no such file, another kind of file, or one that cannot be read.
    """
    if not path.is_file():
        raise SourceError(f"{path}: no such weights file")
    if path.suffix == ".safetensors":
        return SafetensorsSource(path)
    if path.suffix not in {".pt", ".pth", ".bin"}:
        raise SourceError(f"{path}: expected a .safetensors, .pt, .pth or .bin file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # torch.load fails in many ways on a damaged file: RuntimeError, UnpicklingError, KeyError...
    except Exception as error:
        raise SourceError(
            f"{path}: not a state dict that can be read without running code: {error}"
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping):
        raise SourceError(f"{path}: expected a state dict, got a {type(state).__name__}")
    tensors = {k: v for k, v in state.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        raise SourceError(f"{path}: holds no named tensors")
    return TensorSource(tensors, str(path))


def weights_of(collection: object) -> WeightSource:
    """Wraps weights that are in memory.

    Args:
        collection: a TorchRec `EmbeddingBagCollection` (anything with `embedding_bags` and
            `embedding_bag_configs`), a mapping of names to `nn.EmbeddingBag` or `nn.Embedding`,
            a state dict, an `nn.Module`, or a `WeightSource`, which is returned as it is.

    Raises:
        SourceError: it is none of these.
    """
    if isinstance(collection, WeightSource):
        return collection
    if isinstance(collection, nn.Module):
        # An EmbeddingBagCollection is a module whose state dict says embedding_bags.<table>.weight.
        return TensorSource(collection.state_dict(), type(collection).__name__)
    if isinstance(collection, Mapping) and collection:
        tensors = {}
        for name, value in collection.items():
            if isinstance(value, nn.EmbeddingBag | nn.Embedding):
                value = value.weight
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise SourceError(
                    f"weights {name!r}: expected a tensor or an embedding module, "
                    f"got a {type(value).__name__}"
                )
            tensors[name] = value
        return TensorSource(tensors)
    raise SourceError(
        "weights: expected an EmbeddingBagCollection, a dict of nn.EmbeddingBag, a state dict or "
        f"a weight source, got a {type(collection).__name__}"
    )


def find_table(source: WeightSource, table: str, key: str | None) -> str:
    """The name under which a table's weight is kept.

    Args:
        source: where to look.
        table: the table's name.
        key: its name as the spec gives it, or None to try the table's name, `<table>.weight` and
            TorchRec's names for it, with any prefix.

    Raises:
        SourceError: it is not there, or several weights could be it.
    """
    keys = set(source.keys())
    if key is not None:
        if key not in keys:
            raise SourceError(f"table {table!r}: {source.description} holds no weight {key!r}")
        return key
    for name in (table, f"{table}.weight"):
        if name in keys:
            return name
    endings = tuple(
        f"{parent}.{table}.weight" for parent in ("embedding_bags", "embeddings", "embedding")
    )
    found = sorted(k for k in keys if k in endings or k.endswith(tuple("." + e for e in endings)))
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(
            f"table {table!r}: several weights of {source.description} could be it: "
            f"{', '.join(found)}; say which with the table's 'weights'"
        )
    shown = ", ".join(sorted(keys)[:8]) + (", ..." if len(keys) > 8 else "")
    raise SourceError(
        f"table {table!r}: {source.description} holds none of {table!r}, {table + '.weight'!r}, "
        f"{endings[0]!r}; it holds {shown}"
    )


def check_table(source: WeightSource, table: str, key: str, *, rows: int, dim: int) -> None:
    """Refuses a weight that is not the table the spec describes.

    Raises:
        SourceError: its shape or dtype is another one.
    """
    shape = source.shape(key)
    if shape != (rows, dim):
        raise SourceError(
            f"table {table!r}: the spec says {rows} rows of dim {dim}, but {key!r} in "
            f"{source.description} is {list(shape)}"
        )
    dtype = source.read(key, 0, 1).dtype
    if dtype not in FLOATING:
        raise SourceError(
            f"table {table!r}: {key!r} in {source.description} is {dtype}, expected one of "
            f"{', '.join(str(d) for d in FLOATING)}"
        )
