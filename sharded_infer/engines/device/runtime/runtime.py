"""The engine's interface to devices: memory, streams, events, captured work.

Work on one stream runs in order. Streams run concurrently, and only events order them.
`cuda_runtime` runs on GPUs; `simulated_runtime` on a CPU, reordering work as far as streams allow,
to find missing events.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

# A unit of work for a stream. Called with the stream current; starts work and does not wait.
Work = Callable[[], None]


class Runtime(Protocol):
    """Devices and their streams; thread-safe, except that one thread at a time uses a stream.

    The types of streams, events and captured work depend on the runtime. `workspace_bytes` is the
    workspace of matrix products for each stream that runs them.
    """

    workspace_bytes: int

    def tensors_of(self, device: torch.device) -> torch.device:
        """Torch device of a device's tensors; the host if the device is simulated."""
        ...

    def pinned(self, count: int) -> Tensor:
        """Pinned host memory, for asynchronous copies: uint8 `[count]`, zeros.

        Freed memory may be kept for reuse. Raises CapacityError if the host has too little memory.
        """
        ...

    def pinned_for_good(self, count: int) -> Tensor:
        """Pinned host memory that lives as long as a model, and that kernels can read.

        Slow to allocate; not rounded up, and returned to the system. Raises CapacityError as
        `pinned`.
        """
        ...

    def empty(self, device: torch.device, count: int) -> Tensor:
        """Device memory: uint8 `[count]`, zeros.

        Raises CapacityError, with the free bytes, if the device has too little memory.
        """
        ...

    def stream(self, device: torch.device) -> Any:
        """A stream of a device, not shared with other runtimes."""
        ...

    def event(self) -> Any:
        """A new event, in the reached state."""
        ...

    def run(self, stream: Any, work: Work) -> None:
        """Puts work on a stream."""
        ...

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        """Puts a copy between the host and the stream's device on the stream."""
        ...

    def peer_copy(self, arriving: Any, leaving: Any, target: Tensor, source: Tensor) -> None:
        """Copies between devices, after all work already on either stream.

        `arriving` and `leaving` are streams of target and source; later work on `arriving` runs
        after the copy.
        """
        ...

    def record(self, event: Any, stream: Any) -> None:
        """Records an event: it is reached when all work already on the stream is done.

        An event must always be recorded on streams of the same device.
        """
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Makes a stream wait for the last recording of an event."""
        ...

    def synchronize(self, event: Any) -> None:
        """Makes the calling thread wait for an event, without blocking other threads."""
        ...

    def capture(self, stream: Any, work: Work) -> Work:
        """Captures the work that `work` starts; the result replays it as a unit without Python.

        Args:
            stream: must be idle; the captured work runs there.
            work: called once. It must have run before, so that its kernels are compiled. It reads
                and writes the same memory each time.
        """
        ...

    def release_cached(self, device: torch.device) -> None:
        """Makes a device's freed memory available to graphs; may block other threads' work."""
        ...

    def free(self, device: torch.device) -> int | None:
        """Free bytes of a device; None is unlimited."""
        ...

    def allocated(self, device: torch.device) -> int:
        """Bytes of a device that this process uses."""
        ...
