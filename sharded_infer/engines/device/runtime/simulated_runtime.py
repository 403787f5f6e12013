"""Devices simulated on a CPU: work runs as late as possible, in a random order that is allowed.

A thread that waits for an event runs the next work item of random streams until it is reached.
Copies therefore read their sources late, and streams overtake each other unless an event prevents
it. Results are likely wrong if an event is missing; on a GPU only occasionally.
"""

import random
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sharded_infer.byte_sizes import size_text
from sharded_infer.engines.device.runtime.runtime import Work
from sharded_infer.errors import CapacityError, InternalError

_HOST = torch.device("cpu")


class SimulatedEvent:
    """An event, with the number of times that it was recorded and reached."""

    __slots__ = ("device", "reached", "recorded")

    def __init__(self) -> None:
        self.device: torch.device | None = None
        self.recorded = 0
        self.reached = 0


class SimulatedStream:
    """A stream, with its pending work."""

    __slots__ = ("device", "pieces")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Each item runs and returns true, or returns false if it must wait.
        self.pieces: deque[Callable[[], bool]] = deque()


class SimulatedRuntime:
    """Simulated devices, with memory of the host and a limit for each."""

    workspace_bytes = 0

    def __init__(self, *, seed: int = 0, device_bytes: int | None = None) -> None:
        """Creates idle devices; None as `device_bytes` means unlimited memory."""
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._device_bytes = device_bytes
        self._lock = threading.Lock()
        self._streams: list[SimulatedStream] = []
        self._allocated: dict[torch.device, int] = {}

    def tensors_of(self, device: torch.device) -> torch.device:
        """See `Runtime.tensors_of`."""
        return _HOST

    def pinned(self, count: int) -> Tensor:
        """See `Runtime.pinned`."""
        return torch.zeros(count, dtype=torch.uint8)

    def pinned_for_good(self, count: int) -> Tensor:
        """See `Runtime.pinned_for_good`."""
        return self.pinned(count)

    def empty(self, device: torch.device, count: int) -> Tensor:
        """See `Runtime.empty`."""
        held = self._allocated.get(device, 0)
        if self._device_bytes is not None and held + count > self._device_bytes:
            raise CapacityError(
                f"{device}: out of memory: {size_text(count)} asked for, "
                f"{size_text(self._device_bytes - held)} free of {size_text(self._device_bytes)}"
            )
        self._allocated[device] = held + count
        # A tensor's storage holds the array for as long as any view exists.
        memory = np.zeros(max(1, count), np.uint8)
        weakref.finalize(memory, self._give_back, device, count)
        return torch.from_numpy(memory)[:count]

    def stream(self, device: torch.device) -> SimulatedStream:
        """See `Runtime.stream`."""
        stream = SimulatedStream(device)
        with self._lock:
            self._streams.append(stream)
        return stream

    def event(self) -> SimulatedEvent:
        """See `Runtime.event`."""
        return SimulatedEvent()

    def run(self, stream: SimulatedStream, work: Work) -> None:
        """See `Runtime.run`."""

        def piece() -> bool:
            with torch.inference_mode():
                work()
            return True

        self._put(stream, piece)

    def copy(self, stream: SimulatedStream, target: Tensor, source: Tensor) -> None:
        """See `Runtime.copy`."""
        self.run(stream, lambda: _copy(target, source))

    def peer_copy(
        self, arriving: SimulatedStream, leaving: SimulatedStream, target: Tensor, source: Tensor
    ) -> None:
        """See `Runtime.peer_copy`."""
        ready, done = self.event(), self.event()
        self.record(ready, arriving)
        self.wait(leaving, ready)
        self.copy(leaving, target, source)
        self.record(done, leaving)
        self.wait(arriving, done)

    def record(self, event: SimulatedEvent, stream: SimulatedStream) -> None:
        """Raises InternalError, as CUDA would, for an event recorded on another device before."""
        if event.device not in (None, stream.device):
            raise InternalError(f"an event of {event.device} is recorded on {stream.device}")
        event.device = stream.device
        event.recorded += 1
        number = event.recorded

        def piece() -> bool:
            event.reached = max(event.reached, number)
            return True

        self._put(stream, piece)

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """See `Runtime.wait`."""
        number = event.recorded
        self._put(stream, lambda: event.reached >= number)

    def synchronize(self, event: SimulatedEvent) -> None:
        """See `Runtime.synchronize`."""
        number = event.recorded
        while True:
            # The lock is released between items, so other threads can proceed.
            with self._lock:
                if event.reached >= number:
                    return
                self._go_on()

    def capture(self, stream: SimulatedStream, work: Work) -> Work:
        """See `Runtime.capture`."""
        if stream.pieces:
            raise InternalError("a stream that is captured for has work to do")
        return work

    def release_cached(self, device: torch.device) -> None:
        """Does nothing, because nothing is cached."""

    def free(self, device: torch.device) -> int | None:
        """See `Runtime.free`."""
        if self._device_bytes is None:
            return None
        return self._device_bytes - self.allocated(device)

    def allocated(self, device: torch.device) -> int:
        """See `Runtime.allocated`."""
        return self._allocated.get(device, 0)

    def _give_back(self, device: torch.device, count: int) -> None:
        self._allocated[device] -= count

    def _put(self, stream: SimulatedStream, piece: Callable[[], bool]) -> None:
        with self._lock:
            stream.pieces.append(piece)

    def _go_on(self) -> None:
        """Runs one item of a randomly chosen stream that need not wait."""
        busy = [stream for stream in self._streams if stream.pieces]
        self._random.shuffle(busy)
        for stream in busy:
            if stream.pieces[0]():
                stream.pieces.popleft()
                return
        raise InternalError("every stream waits for an event that nothing will reach")


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
