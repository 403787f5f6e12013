"""Devices played on a CPU: everything put on a stream runs late, and in any order that is allowed.

Nothing runs before somebody waits. Then, one piece at a time, a stream is drawn that can go on, and
its next piece is run, until what is waited for is reached. So a copy reads its source long after it
was asked for, and streams overtake each other wherever no event holds them: work that lacks an
event gives wrong numbers here, as it would on a card now and then.
"""

import random
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sharded_infer.device.runtime import Work
from sharded_infer.errors import CapacityError, InternalError
from sharded_infer.sizes import size_text

_HOST = torch.device("cpu")


class RehearsedEvent:
    """An event: how often it was recorded, and how often reached."""

    __slots__ = ("device", "reached", "recorded")

    def __init__(self) -> None:
        """Begins as if it had been reached."""
        self.device: torch.device | None = None
        self.recorded = 0
        self.reached = 0


class RehearsedStream:
    """A stream: what was put on it and has not run."""

    __slots__ = ("device", "pieces")

    def __init__(self, device: torch.device) -> None:
        """Begins with nothing to do."""
        self.device = device
        # Each runs, or says that it cannot yet.
        self.pieces: deque[Callable[[], bool]] = deque()


class RehearsalRuntime:
    """Devices that are memory of the host, each with as many bytes as it is given.

    Attributes:
        captures: how often work was captured.
    """

    workspace_bytes = 0

    def __init__(self, *, seed: int = 0, device_bytes: int | None = None) -> None:
        """Begins with idle devices.

        Args:
            seed: of the order in which streams go on.
            device_bytes: memory of each device; None: no end of it.
        """
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._device_bytes = device_bytes
        self._lock = threading.Lock()
        self._streams: list[RehearsedStream] = []
        self._allocated: dict[torch.device, int] = {}
        self.captures = 0

    def tensors_of(self, device: torch.device) -> torch.device:
        """As `Runtime.tensors_of`."""
        return _HOST

    def pinned(self, count: int) -> Tensor:
        """As `Runtime.pinned`."""
        return torch.zeros(count, dtype=torch.uint8)

    def pinned_for_good(self, count: int) -> Tensor:
        """As `Runtime.pinned_for_good`."""
        return self.pinned(count)

    def empty(self, device: torch.device, count: int) -> Tensor:
        """As `Runtime.empty`."""
        held = self._allocated.get(device, 0)
        if self._device_bytes is not None and held + count > self._device_bytes:
            raise CapacityError(
                f"{device}: out of memory: {size_text(count)} asked for, "
                f"{size_text(self._device_bytes - held)} free of {size_text(self._device_bytes)}"
            )
        self._allocated[device] = held + count
        # A tensor's storage holds it, whatever views of the tensor there are.
        memory = np.zeros(max(1, count), np.uint8)
        weakref.finalize(memory, self._give_back, device, count)
        return torch.from_numpy(memory)[:count]

    def stream(self, device: torch.device) -> RehearsedStream:
        """As `Runtime.stream`."""
        stream = RehearsedStream(device)
        with self._lock:
            self._streams.append(stream)
        return stream

    def event(self) -> RehearsedEvent:
        """As `Runtime.event`."""
        return RehearsedEvent()

    def run(self, stream: RehearsedStream, work: Work) -> None:
        """As `Runtime.run`."""

        def piece() -> bool:
            with torch.inference_mode():
                work()
            return True

        self._put(stream, piece)

    def copy(self, stream: RehearsedStream, target: Tensor, source: Tensor) -> None:
        """As `Runtime.copy`."""
        self.run(stream, lambda: _copy(target, source))

    def peer_copy(
        self, arriving: RehearsedStream, leaving: RehearsedStream, target: Tensor, source: Tensor
    ) -> None:
        """As `Runtime.peer_copy`."""
        ready, done = self.event(), self.event()
        self.record(ready, arriving)
        self.wait(leaving, ready)
        self.copy(leaving, target, source)
        self.record(done, leaving)
        self.wait(arriving, done)

    def record(self, event: RehearsedEvent, stream: RehearsedStream) -> None:
        """As `Runtime.record`.

        Raises:
            InternalError: it was recorded on another device before, which CUDA refuses.
        """
        if event.device not in (None, stream.device):
            raise InternalError(f"an event of {event.device} is recorded on {stream.device}")
        event.device = stream.device
        event.recorded += 1
        number = event.recorded

        def piece() -> bool:
            event.reached = max(event.reached, number)
            return True

        self._put(stream, piece)

    def wait(self, stream: RehearsedStream, event: RehearsedEvent) -> None:
        """As `Runtime.wait`."""
        number = event.recorded
        self._put(stream, lambda: event.reached >= number)

    def synchronize(self, event: RehearsedEvent) -> None:
        """As `Runtime.synchronize`."""
        number = event.recorded
        while True:
            # Between two pieces others may come.
            with self._lock:
                if event.reached >= number:
                    return
                self._go_on()

    def capture(self, stream: RehearsedStream, work: Work) -> Work:
        """As `Runtime.capture`."""
        if stream.pieces:
            raise InternalError("a stream that is captured for has work to do")
        self.captures += 1
        return work

    def release_cached(self, device: torch.device) -> None:
        """As `Runtime.release_cached`: nothing is kept."""

    def free(self, device: torch.device) -> int | None:
        """As `Runtime.free`."""
        if self._device_bytes is None:
            return None
        return self._device_bytes - self.allocated(device)

    def allocated(self, device: torch.device) -> int:
        """As `Runtime.allocated`."""
        return self._allocated.get(device, 0)

    def _give_back(self, device: torch.device, count: int) -> None:
        self._allocated[device] -= count

    def _put(self, stream: RehearsedStream, piece: Callable[[], bool]) -> None:
        with self._lock:
            stream.pieces.append(piece)

    def _go_on(self) -> None:
        """Runs one piece of a stream that can go on."""
        busy = [stream for stream in self._streams if stream.pieces]
        self._random.shuffle(busy)
        for stream in busy:
            if stream.pieces[0]():
                stream.pieces.popleft()
                return
        raise InternalError("every stream waits for an event that nothing will reach")


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
