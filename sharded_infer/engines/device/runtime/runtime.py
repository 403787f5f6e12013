"""The engine's interface to devices: memory, streams, events, captured work.

Work on one stream runs in order. Streams run concurrently, and only events order them.
`cuda_runtime` runs on GPUs. `simulated_runtime` runs on a CPU and reorders work as far as streams
allow, so a missing event can be found without a GPU.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

# A unit of work for a stream. Called with the stream current; starts work and does not wait.
Work = Callable[[], None]


class Runtime(Protocol):
    """Devices and their streams; thread-safe, except that one thread at a time uses a stream.

    The types of streams, events and captured work depend on the runtime.

    Attributes:
        workspace_bytes: workspace of matrix products for each stream that runs them.
    """

    workspace_bytes: int

    def tensors_of(self, device: torch.device) -> torch.device:
        """The torch device of a device's tensors; the host if the device is simulated."""
        ...

    def pinned(self, count: int) -> Tensor:
        """Pinned host memory, for asynchronous copies: uint8 `[count]`, zeros.

        Freed memory may be kept for reuse.

        Raises:
            CapacityError: the host has too little memory.
        """
        ...

    def pinned_for_good(self, count: int) -> Tensor:
        """Pinned host memory that lives as long as a model, and that kernels can read.

        Slow to allocate. Its size is not rounded up, and freed memory returns to the system.

        Raises:
            CapacityError: the host has too little memory.
        """
        ...

    def empty(self, device: torch.device, count: int) -> Tensor:
        """Device memory: uint8 `[count]`, zeros.

        Raises:
            CapacityError: the device has too little memory; gives the free bytes.
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

        Args:
            arriving: stream of the target's device; later work on it runs after the copy.
            leaving: stream of the source's device.
            target: written.
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
        """Captures the work that `work` starts, to replay it as a unit without Python.

        Args:
            stream: must be idle; the captured work runs there.
            work: called once. It must have run before, so that its kernels are compiled. It reads
                and writes the same memory each time.

        Returns:
            Work that replays the capture.
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
