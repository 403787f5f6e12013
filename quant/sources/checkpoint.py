"""Checkpoints and modules as weight sources."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quant.sources.distributed_checkpoint import METADATA_NAME, DistributedCheckpointSource
from quant.sources.file_kind import ZIP, file_kind
from quant.sources.numpy_files import NpzSource, NumpySource
from quant.sources.safetensors_files import SafetensorsSource, ShardedSafetensorsSource
from quant.sources.table_weight import is_optimizer_state
from quant.sources.weight_source import (
    Array,
    SourceError,
    TensorSource,
    WeightSource,
    holds_numbers,
    packed_rows,
)

ACCEPTED = (
    "a .safetensors, .pt, .pth, .bin, .npy or .npz file, a .safetensors.index.json with its files, "
    "or a directory that torch.distributed.checkpoint wrote or that holds .npy files or one such "
    "index"
)


# Pickled classes of int4 and int2 rows. Source: torchrec/tensor_types.py, release 1.8.
_PACKED = ("torchrec.tensor_types.UInt4Tensor", "torchrec.tensor_types.UInt2Tensor")


class _PackedRows(Tensor):
    """Stand-in for TorchRec's tensors of packed rows in a file; only its parts are read."""

    @classmethod
    def __torch_dispatch__(cls, *arguments: Any, **_: Any) -> Any:
        raise SourceError(f"rows that are packed cannot be computed with: {arguments[0]}")


class LiveSource(TensorSource):
    """Weights of modules in memory, with the modules, which define pooling."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor | Array],
        modules: Mapping[str, nn.Module],
        description: str = "the modules",
        *,
        whole: Callable[..., Mapping[str, Tensor]] | None = None,
        scores: Callable[[Any], Mapping[str, Array]] | None = None,
        samples: Mapping[str, Array] | None = None,
    ) -> None:
        """Wrap all weights without copies.

        Args:
            modules: by the prefix of their weights' keys, without a dot: "" for a module whose
                state dict the weights are. A `nn.EmbeddingBag` or `nn.Embedding` whose weight's key
                is the name itself has that name.
            description: the source's name in messages.
            whole: scores a batch with the whole model, if its call is known: takes fp32 dense
                inputs by name and a TorchRec KeyedJaggedTensor, and returns scores by output.
            scores: scores a batch of requests (`ModelInput`) with the whole model, by output.
            samples: inputs that it takes, by name.
        """
        super().__init__(tensors, description)
        self.modules = dict(modules)
        self.whole = whole
        self.scores = scores
        self.samples = samples

    def submodules(self) -> Iterator[tuple[str, nn.Module]]:
        """All submodules, each with the prefix of its weights' keys, dot included."""
        for name, module in self.modules.items():
            for path, part in module.named_modules(remove_duplicate=False):
                yield "".join(f"{step}." for step in (name, path) if step), part

    def embeddings(self) -> dict[str, nn.Module]:
        """Each `nn.EmbeddingBag` and `nn.Embedding`, by its weight's key."""
        keys = set(self.keys())
        found: dict[str, nn.Module] = {}
        for prefix, module in self.submodules():
            if isinstance(module, nn.EmbeddingBag | nn.Embedding):
                key = f"{prefix}weight"
                found[key if key in keys else prefix.removesuffix(".")] = module
        return found


def open_weights(path: Path) -> WeightSource:
    """Open a checkpoint. None of its code runs, and its tables are mapped, not loaded.

    `path` is one of `ACCEPTED`. A file of `torch.save` (`.pt`, `.pth`, `.bin`) has one state dict,
    under any key or none, beside an optimizer's or not. A `.npy` file's weight has the file's name;
    `.npz` files are uncompressed. Raises SourceError if the file does not exist, is of another
    kind, or is unreadable.
    """
    if path.is_dir():
        return _open_directory(path)
    if not path.is_file():
        raise SourceError(f"{path}: no such weights file or directory")
    if path.name.endswith(".index.json"):
        return ShardedSafetensorsSource(path)
    match path.suffix:
        case ".safetensors":
            return SafetensorsSource(path)
        case ".npy":
            return NumpySource(path)
        case ".npz":
            return NpzSource(path)
        case ".pt" | ".pth" | ".bin":
            return _open_saved(path)
        case _:
            raise SourceError(f"{path}: expected {ACCEPTED}")


def weights_of(collection: object) -> WeightSource:
    """Wrap weights that are in memory.

    `collection` is a TorchRec `EmbeddingBagCollection` (anything with `embedding_bags` and
    `embedding_bag_configs`), an `nn.Module`, a state dict, a mapping of names to `nn.EmbeddingBag`,
    `nn.Embedding` or other modules, to tensors, to NumPy arrays, or to such mappings, or a
    `WeightSource`, which is returned unchanged. Nested names are joined by dots. An array `[rows,
    dim]` may be mapped from its file. Raises SourceError for anything else, or for a tensor that is
    not all in this process.
    """
    if isinstance(collection, WeightSource):
        return collection
    if isinstance(collection, nn.Module):
        # An EmbeddingBagCollection's state dict has keys embedding_bags.<table>.weight.
        tensors = dict(_state(collection, ""))
        return LiveSource(tensors, {"": collection}, type(collection).__name__)
    if isinstance(collection, Mapping) and collection:
        flat = dict(_flattened(collection, ""))
        modules = dict(_modules(collection, ""))
        return LiveSource(flat, modules) if modules else TensorSource(flat)
    raise SourceError(
        "weights: expected an EmbeddingBagCollection, a dict of nn.EmbeddingBag, of tensors or of "
        f"NumPy arrays, a state dict or a weight source, got a {type(collection).__name__}"
    )


def _open_directory(path: Path) -> WeightSource:
    if (path / METADATA_NAME).is_file():
        return DistributedCheckpointSource(path)
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if len(indexes) == 1:
        return ShardedSafetensorsSource(indexes[0])
    if indexes:
        listed = ", ".join(index.name for index in indexes)
        raise SourceError(f"{path}: holds several indexes: {listed}; give one of them")
    if any(path.glob("*.npy")):
        return NumpySource(path)
    names = sorted(entry.name for entry in path.iterdir())
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise SourceError(f"{path}: a directory of {shown or 'nothing'}; expected {ACCEPTED}")


def _open_saved(path: Path) -> WeightSource:
    try:
        with torch.serialization.safe_globals([(_PackedRows, name) for name in _PACKED]):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # torch.load fails in many ways on a damaged file: RuntimeError, UnpicklingError, KeyError...
    except Exception as error:
        raise SourceError(f"{path}: {_why_not_loaded(path, str(error))}") from error
    tensors = _saved_tensors(path, state)
    for key, value in tensors.items():
        if isinstance(value, _PackedRows) and packed_rows(value) is None:
            raise SourceError(f"{path}: {key!r}: packed rows of which the bytes are missing")
    return TensorSource(tensors, str(path))


def _why_not_loaded(path: Path, error: str) -> str:
    if "TorchScript" in error:
        return "a TorchScript program: save its state_dict() with torch.save"
    if unknown := _UNKNOWN_CLASS.search(error):
        return (
            f"not a state dict that can be read without running code: it holds a {unknown[1]}; "
            "save the model's state_dict() alone"
        )
    kind = file_kind(path)
    # All but zip archives, of which torch only says that it cannot map them.
    if kind != ZIP and (kind or "mmap" in error):
        return f"not a state dict: {kind or 'not a file of torch.save'}"
    return f"not a state dict that can be read without running code: {error}"


# Source: the message of torch/_weights_only_unpickler.py.
_UNKNOWN_CLASS = re.compile(r"GLOBAL (\S+) was not an allowed global")


def _saved_tensors(path: Path, state: Any) -> dict[str, Tensor]:
    if not isinstance(state, Mapping):
        raise SourceError(f"{path}: expected a state dict, got a {type(state).__name__}")
    if not state:
        raise SourceError(f"{path}: an empty state dict")
    held = dict(_state_dicts(state, ""))
    # Beside weights, what holds no matrix is a seed, a metric or a scheduler.
    for is_other in (_is_optimizers, _is_without_matrices):
        held = {name: held[name] for name in held if not is_other(name, held[name])} or held
    if len(held) == 1:
        return next(iter(held.values()))
    if held:
        names = [repr(name) if name else f"{next(iter(held['']))!r}, ..." for name in held]
        raise SourceError(
            f"{path}: holds several state dicts: {', '.join(names)}; save one of them "
            "in a file of its own"
        )
    raise SourceError(
        f"{path}: holds no named tensors, only {', '.join(map(repr, list(state)[:8]))}"
    )


def _state_dicts(values: Mapping[Any, Any], name: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Mappings of names to tensors, at any depth, but those of optimizers."""
    tensors = {k: v for k, v in values.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if tensors:
        yield name, tensors
    for key, value in values.items():
        # A module's extra state is not its weights.
        if not isinstance(value, Mapping) or str(key).endswith("_extra_state"):
            continue
        if not {"state", "param_groups"} <= set(value):
            yield from _state_dicts(value, f"{name}.{key}" if name else f"{key}")


def _is_optimizers(name: str, tensors: Mapping[str, Tensor]) -> bool:
    return all(is_optimizer_state(f"{name}.{key}") for key in tensors)


def _is_without_matrices(_: str, tensors: Mapping[str, Tensor]) -> bool:
    return all(tensor.ndim < 2 for tensor in tensors.values())


def _flattened(
    values: Mapping[object, object], prefix: str
) -> Iterator[tuple[str, Tensor | Array]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if not isinstance(name, str):
            raise SourceError(f"weights {key!r}: expected names, got a {type(name).__name__}")
        if isinstance(value, nn.EmbeddingBag | nn.Embedding):
            yield key, _whole(key, value.weight)
        elif isinstance(value, nn.Module):
            yield from _state(value, f"{key}.")
        elif isinstance(value, Mapping):
            yield from _flattened(value, f"{key}.")
        elif isinstance(value, Tensor):
            yield key, _whole(key, value)
        elif isinstance(value, np.ndarray) and holds_numbers(value.dtype):
            yield key, value
        else:
            kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value)
            raise SourceError(
                f"weights {key!r}: expected a tensor, an array of numbers or an embedding module, "
                f"got a {kind.__name__ if isinstance(kind, type) else kind}"
            )


def _modules(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, value in values.items():
        if isinstance(value, nn.Module):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            yield from _modules(value, f"{prefix}{name}.")


def _state(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in module.state_dict(prefix=prefix).items():
        # A module's extra state may hold non-tensors.
        if isinstance(value, Tensor):
            yield name, _whole(name, value)


def _whole(key: str, tensor: Tensor) -> Tensor:
    # A DTensor or a ShardedTensor, by duck typing: torch may be built without them.
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not hasattr(local, "local_shards"):
        pieces = [local]
    else:
        # A ShardedTensor's shards wrap their tensors, TorchRec's local shards are tensors.
        pieces = [getattr(shard, "tensor", shard) for shard in local.local_shards()]
    if len(pieces) != 1 or pieces[0].shape != tensor.shape:
        raise SourceError(
            f"weights {key!r}: a {type(tensor).__name__} {list(tensor.shape)}, of which this "
            f"process holds {' and '.join(str(list(p.shape)) for p in pieces) or 'nothing'}: "
            "save it with torch.distributed.checkpoint, and give that directory"
        )
    if pieces[0].is_meta:
        raise SourceError(f"weights {key!r}: has a shape but no data (it is on the meta device)")
    return pieces[0]
