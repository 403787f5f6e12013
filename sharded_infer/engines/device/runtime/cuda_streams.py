"""CUDA streams with exclusive use within this process.

torch hands out its 32 streams per device (c10/cuda/CUDAStream.h) in turn, even those in use. A
stream that one version captures on must not serve another.
"""

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from sharded_infer.errors import CapacityError

_TORCH_HAS = 32


class StreamPool:
    """Streams that are created once and lent to one owner at a time."""

    def __init__(self, make: Callable[[torch.device], Any], most: int) -> None:
        self._make, self._most = make, most
        self._lock = threading.Lock()
        self._free: dict[torch.device, list[Any]] = defaultdict(list)
        self._made: dict[torch.device, int] = defaultdict(int)

    def take(self, device: torch.device, owner: object) -> Any:
        """Lends a stream until its owner, done with it, is garbage-collected.

        Raises CapacityError if all streams are in use.
        """
        with self._lock:
            free = self._free[device]
            stream = free.pop() if free else self._new(device)
        # No lock: garbage collection may call this while the lock is held.
        weakref.finalize(owner, free.append, stream).atexit = False
        return stream

    def _new(self, device: torch.device) -> Any:
        if self._made[device] == self._most:
            raise CapacityError(f"{device}: its {self._most} streams are taken by other versions")
        self._made[device] += 1
        return self._make(device)


CUDA_STREAMS = StreamPool(torch.cuda.Stream, _TORCH_HAS)
