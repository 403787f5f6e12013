"""Memory of a tower's activations, without computing them."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from kernels.gpu.device_tables import rounded_up
from sharded_infer.errors import TowerError

# torch's CUDA allocator rounds sizes up to this (c10/cuda/CUDACachingAllocator.h, kMinBlockSize).
_BLOCK_BYTES: Final = 512


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the live memory allocated by operators inside it.

    Args:
        existing: tensors whose memory is not counted.

    Attributes:
        peak: maximum bytes alive at once.
    """

    def __init__(self, existing: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live = 0
        # Held, so that no new storage gets the same address as an existing one.
        self._existing = [tensor.untyped_storage() for tensor in existing]
        self._known: dict[int, object] = {storage._cdata: storage for storage in self._existing}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs an operator and counts its results' memory; views share that of their sources."""
        return tree_map_only(Tensor, self._count, func(*args, **(kwargs or {})))

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            size = rounded_up(storage.nbytes(), _BLOCK_BYTES)
            self._known[key] = weakref.ref(storage, partial(self._forget, key, size))
            self._live += size
            self.peak = max(self.peak, self._live)
        return tensor

    def _forget(self, key: int, size: int, _gone: object) -> None:
        del self._known[key]
        self._live -= size


def peak_bytes(program: torch.nn.Module, inputs: Sequence[Tensor]) -> int:
    """Peak bytes of the tensors that a program on `meta` allocates, without its inputs.

        max over time of sum over live tensors of 512 * ceil(bytes / 512)

    Raises TowerError if torch cannot infer an operator's shapes.
    """
    live = LiveBytes([*inputs, *program.buffers()])
    try:
        # Not inference mode: there, composite operators would hide the tensors of their parts.
        with torch.no_grad(), live:
            program(*inputs)
    except (NotImplementedError, RuntimeError) as error:
        raise TowerError(f"the memory of the tower's activations is unknown: {error}") from error
    return live.peak
