"""What an engine asks of devices: memory, streams, events, captured work.

Work is put on a stream and runs later, in the stream's order; streams run side by side, and only
events bring them in an order. `cuda_runtime` is the real one. `rehearsal_runtime` runs on a CPU,
and takes every liberty that streams have, so that a missing event shows without a card.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

# What is put on a stream: called with the stream current, it starts work and waits for nothing.
Work = Callable[[], None]


class Runtime(Protocol):
    """Devices, and how work gets to them; any thread may call, one at a time for each stream.

    Streams, events and captured work are the runtime's own objects.

    Attributes:
        workspace_bytes: what matrix products take of a device for each stream that they run on.
    """

    workspace_bytes: int

    def tensors_of(self, device: torch.device) -> torch.device:
        """Where tensors of a device lie for torch: there, or on the host that plays it."""
        ...

    def pinned(self, count: int) -> Tensor:
        """Host memory that devices copy from and to by themselves: uint8 `[count]`, zeros.

        What is given back may be kept for the next who asks.

        Raises:
            CapacityError: there is no such memory left.
        """
        ...

    def pinned_for_good(self, count: int) -> Tensor:
        """The same for what lives as long as a model: takes no more, and gives all of it back.

        Slow to have. Devices' kernels can read it.

        Raises:
            CapacityError: there is no such memory left.
        """
        ...

    def empty(self, device: torch.device, count: int) -> Tensor:
        """Memory of a device: uint8 `[count]`, zeros.

        Raises:
            CapacityError: the device has no such memory left; says how much it has.
        """
        ...

    def stream(self, device: torch.device) -> Any:
        """A new stream of a device."""
        ...

    def event(self) -> Any:
        """A new event, as if it had been reached."""
        ...

    def run(self, stream: Any, work: Work) -> None:
        """Puts work on a stream."""
        ...

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        """Puts a copy between the host and the stream's device on a stream."""
        ...

    def peer_copy(self, arriving: Any, leaving: Any, target: Tensor, source: Tensor) -> None:
        """Copies between devices, after all that was put on either of their streams.

        Args:
            arriving: the target's stream; what is put on it later comes after the copy.
            leaving: the source's stream.
            target: written.
            source: read.
        """
        ...

    def record(self, event: Any, stream: Any) -> None:
        """Has an event reached when all is done that was put on the stream so far.

        An event is recorded on streams of one device.
        """
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Holds a stream until an event, as it was recorded last, is reached."""
        ...

    def synchronize(self, event: Any) -> None:
        """Holds the calling thread until an event is reached; others go on."""
        ...

    def capture(self, stream: Any, work: Work) -> Work:
        """Keeps what work starts, to be started again as one piece and without Python.

        Args:
            stream: what is captured for; it is idle.
            work: called once, having been run before, so that nothing in it is new. It reads and
                writes the same memory each time.

        Returns:
            What to put on the stream.
        """
        ...

    def release_cached(self, device: torch.device) -> None:
        """Makes what was freed of a device free for graphs too; others may wait meanwhile."""
        ...

    def free(self, device: torch.device) -> int | None:
        """Bytes of a device that nobody holds; None: no end of them."""
        ...

    def allocated(self, device: torch.device) -> int:
        """Bytes of a device that this process holds and uses."""
        ...
