"""The runtime of CUDA devices, with torch: streams, events, graphs, pinned memory."""

import contextlib
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharded_infer.byte_sizes import size_text
from sharded_infer.engines.device.runtime.cuda_graphs import capture, release_cached
from sharded_infer.engines.device.runtime.runtime import Work
from sharded_infer.errors import CapacityError, DeviceError

# Streams of a device (c10/cuda/CUDAStream.h).
_TORCH_STREAMS = 32


class StreamPool:
    """Streams that are created once and lent to one owner at a time.

    torch hands out its streams in turn, even those in use. A stream that one version captures on
    must not serve another.
    """

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


_STREAMS = StreamPool(torch.cuda.Stream, _TORCH_STREAMS)


class CudaRuntime:
    """The CUDA devices of this process, for one model; its streams are exclusive while it lives."""

    # cuBLAS workspace on sm_90 (torch's CublasHandlePool.cpp, `getChosenWorkspaceSize`); other
    # architectures need less.
    workspace_bytes = 32 * 2**20

    def __init__(self) -> None:
        """Raises DeviceError if torch finds no CUDA device."""
        if not torch.cuda.is_available():
            built = "" if torch.version.cuda else "; this build of torch has no CUDA"
            raise DeviceError(f"no CUDA device was found{built}")
        # Graphs of one stream share a pool because they never run at the same time.
        self._pools: dict[int, Any] = {}

    def tensors_of(self, device: torch.device) -> torch.device:
        """See `Runtime.tensors_of`."""
        return device

    def pinned(self, count: int) -> Tensor:
        """See `Runtime.pinned`."""
        try:
            return torch.zeros(count, dtype=torch.uint8).pin_memory()
        except RuntimeError as error:
            raise CapacityError(
                f"pinned host memory: {size_text(count)} cannot be had: {error}"
            ) from error

    def pinned_for_good(self, count: int) -> Tensor:
        """See `Runtime.pinned_for_good`."""
        # torch's allocator rounds up to the next power of two and keeps freed memory.
        size = max(1, count)
        try:
            memory = np.zeros(size, np.uint8)
        except MemoryError as error:
            raise CapacityError(
                f"pinned host memory: {size_text(count)} cannot be had: {error}"
            ) from error
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = memory.ctypes.data
        # No flags are needed: with unified addressing, which torch requires, every device reads
        # the memory at the host's address.
        status = cudart.cudaHostRegister(address, size, 0)
        if status != cudart.cudaError.success:
            _forget_last_error()
            reason = cudart.cudaGetErrorString(status)
            raise CapacityError(f"pinned host memory: {size_text(count)} cannot be had: {reason}")
        # A tensor's storage holds the array for as long as any view exists.
        weakref.finalize(memory, cudart.cudaHostUnregister, address).atexit = False
        return torch.from_numpy(memory)[:count]

    def empty(self, device: torch.device, count: int) -> Tensor:
        """See `Runtime.empty`."""
        with _capacity_of(device, count):
            memory = torch.zeros(count, dtype=torch.uint8, device=device)
            # Streams that use this memory do not wait for the stream that fills it.
            torch.cuda.current_stream(device).synchronize()
            return memory

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """See `Runtime.stream`."""
        stream: torch.cuda.Stream = _STREAMS.take(device, self)
        return stream

    def event(self) -> torch.cuda.Event:
        """See `Runtime.event`."""
        # Blocking: a waiting thread sleeps instead of spinning.
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def run(self, stream: torch.cuda.Stream, work: Work) -> None:
        """See `Runtime.run`."""
        with torch.cuda.stream(stream):
            try:
                work()
            except torch.OutOfMemoryError as error:
                raise _out_of_memory(stream.device, 0) from error

    def copy(self, stream: torch.cuda.Stream, target: Tensor, source: Tensor) -> None:
        """See `Runtime.copy`."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def peer_copy(
        self,
        arriving: torch.cuda.Stream,
        leaving: torch.cuda.Stream,
        target: Tensor,
        source: Tensor,
    ) -> None:
        """See `Runtime.peer_copy`."""
        # torch copies on the source's current stream and makes the target's wait for it.
        with torch.cuda.stream(leaving), torch.cuda.stream(arriving):
            target.copy_(source, non_blocking=True)

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        """See `Runtime.record`."""
        event.record(stream)

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """See `Runtime.wait`."""
        stream.wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        """See `Runtime.synchronize`."""
        event.synchronize()

    def capture(self, stream: torch.cuda.Stream, work: Work) -> Work:
        """See `Runtime.capture`."""
        with _capacity_of(stream.device, 0):
            pool = self._pools.setdefault(stream.cuda_stream, torch.cuda.graph_pool_handle())
            return capture(stream, work, pool)

    def release_cached(self, device: torch.device) -> None:
        """See `Runtime.release_cached`."""
        release_cached(device)

    def free(self, device: torch.device) -> int | None:
        """See `Runtime.free`; torch's cached memory counts as free, unless graphs use it."""
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + kept - _between_replays(device)

    def allocated(self, device: torch.device) -> int:
        """See `Runtime.allocated`."""
        return torch.cuda.memory_allocated(device) + _between_replays(device)


def _between_replays(device: torch.device) -> int:
    """Bytes that graphs use when replayed; torch counts them as free between replays."""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return graph_bytes(segments, device.index or 0)


def graph_bytes(segments: Sequence[Mapping[str, Any]], device_index: int) -> int:
    """Bytes of a device's graph pools (`torch.cuda.memory_snapshot`) that belong to no tensor."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        # (0, 0) is the default pool, for work that is not captured.
        if segment["device"] == device_index and tuple(segment["segment_pool_id"]) != (0, 0)
    )


def _forget_last_error() -> None:
    """Clears CUDA's last error, which torch would otherwise report at its next kernel."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


@contextlib.contextmanager
def _capacity_of(device: torch.device, count: int) -> Iterator[None]:
    """Translates torch's out-of-memory errors into CapacityError, with the free memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(device, count) from error


def _out_of_memory(device: torch.device, count: int) -> CapacityError:
    free, total = torch.cuda.mem_get_info(device)
    wanted = f"{size_text(count)} asked for, " if count else ""
    return CapacityError(
        f"{device} ({torch.cuda.get_device_name(device)}): out of memory: {wanted}"
        f"{size_text(free)} free of {size_text(total)}"
    )
