"""Idle devices, which leave only the host's part of a batch."""

from typing import Any

from torch import Tensor

from sharded_infer.engines.device.runtime.runtime import Work
from sharded_infer.engines.device.runtime.simulated_runtime import SimulatedRuntime


class IdleRuntime(SimulatedRuntime):
    """A `Runtime` in which nothing runs, and all memory is the host's."""

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
