"""CUDA streams that nobody else of this process uses.

torch has 32 streams a device (c10/cuda/CUDAStream.h) and hands them out in turn, also those that
somebody has: a stream that one version captures on must not be another's that serves.
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
    """Streams that are made once, and lent."""

    def __init__(self, make: Callable[[torch.device], Any], most: int) -> None:
        """Begins with none.

        Args:
            make: a new stream of a device.
            most: of a device.
        """
        self._make, self._most = make, most
        self._lock = threading.Lock()
        self._free: dict[torch.device, list[Any]] = defaultdict(list)
        self._made: dict[torch.device, int] = defaultdict(int)

    def take(self, device: torch.device, owner: object) -> Any:
        """A stream for as long as its owner lives; then the next one has it.

        Args:
            device: with its number.
            owner: whose work on the stream is done when it goes.

        Raises:
            CapacityError: all of them are taken.
        """
        with self._lock:
            free = self._free[device]
            stream = free.pop() if free else self._new(device)
        # It takes no lock: a collection may bring it about where the lock is held.
        weakref.finalize(owner, free.append, stream).atexit = False
        return stream

    def _new(self, device: torch.device) -> Any:
        if self._made[device] == self._most:
            raise CapacityError(f"{device}: its {self._most} streams are taken by other versions")
        self._made[device] += 1
        return self._make(device)


CUDA_STREAMS = StreamPool(torch.cuda.Stream, _TORCH_HAS)
