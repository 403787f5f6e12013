"""Idle devices, which leave only the host's part of a batch."""

from typing import Any

import torch
from torch import Tensor

from sharded_infer.engines.device.runtime.runtime import Work


class IdleRuntime:
    """A `Runtime` in which nothing runs, and all memory is the host's."""

    workspace_bytes = 0

    def tensors_of(self, device: torch.device) -> torch.device:
        return torch.device("cpu")

    def pinned(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.uint8)

    def pinned_for_good(self, count: int) -> Tensor:
        return self.pinned(count)

    def empty(self, device: torch.device, count: int) -> Tensor:
        return torch.zeros(max(1, count), dtype=torch.uint8)[:count]

    def stream(self, device: torch.device) -> Any:
        return None

    def event(self) -> Any:
        return None

    def run(self, stream: Any, work: Work) -> None:
        """Does nothing."""

    def copy(self, stream: Any, target: Tensor, source: Tensor) -> None:
        """Does nothing."""

    def peer_copy(self, arriving: Any, leaving: Any, target: Tensor, source: Tensor) -> None:
        """Does nothing."""

    def record(self, event: Any, stream: Any) -> None:
        """Does nothing."""

    def wait(self, stream: Any, event: Any) -> None:
        """Does nothing."""

    def synchronize(self, event: Any) -> None:
        """Does nothing."""

    def capture(self, stream: Any, work: Work) -> Work:
        return work

    def release_cached(self, device: torch.device) -> None:
        """Does nothing."""

    def free(self, device: torch.device) -> int | None:
        return None

    def allocated(self, device: torch.device) -> int:
        return 0
