"""Devices that do nothing: what is left of a batch is the host's part."""

from typing import Any

import torch
from torch import Tensor

from sharded_infer.engines.device.runtime.runtime import Work


class IdleRuntime:
    """As `Runtime`, but nothing runs."""

    workspace_bytes = 0

    def tensors_of(self, device: torch.device) -> torch.device:
        """The host."""
        return torch.device("cpu")

    def pinned(self, count: int) -> Tensor:
        """Memory of the host."""
        return torch.zeros(count, dtype=torch.uint8)

    def pinned_for_good(self, count: int) -> Tensor:
        """Memory of the host."""
        return self.pinned(count)

    def empty(self, device: torch.device, count: int) -> Tensor:
        """Memory of the host."""
        return torch.zeros(max(1, count), dtype=torch.uint8)[:count]

    def stream(self, device: torch.device) -> Any:
        """One like all others."""
        return None

    def event(self) -> Any:
        """One like all others."""
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
        """The work, which nobody runs."""
        return work

    def release_cached(self, device: torch.device) -> None:
        """Does nothing."""

    def free(self, device: torch.device) -> int | None:
        """No end of them."""
        return None

    def allocated(self, device: torch.device) -> int:
        """None."""
        return 0
