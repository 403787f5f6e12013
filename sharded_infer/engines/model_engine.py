"""Interface of engines that run a model's batches, on the host or on devices."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.lookups.lookup_work import LookupWork
from sharded_infer.tensors import tensor_of


class BatchResult(NamedTuple):
    """Scores and timings of a batch.

    Attributes:
        scores: fp32 `[B]` or `[B, K]` of each output, in the spec's order.
        lookup_seconds: of planning, lookups and assembling; on devices, of writing the batch for
            them.
        tower_seconds: of the tower; on devices, until the scores were back.
        ids_outside: ids that were outside their tables (and ignored or wrapped).
    """

    scores: tuple[NDArray[np.float32], ...]
    lookup_seconds: float
    tower_seconds: float
    ids_outside: int
    work: LookupWork


class ModelEngine(Protocol):
    """Runs batches of one model; thread-safe."""

    @property
    def backends(self) -> Mapping[str, str]:
        """Kernel backend in use for each row format."""

    @property
    def waits(self) -> bool:
        """True if a batch's thread waits for devices: its cost is time, not processor time."""

    @property
    def checked_samples(self) -> int:
        """Samples of a batch that checks of a version may run; more could take all memory."""

    @property
    def device_slots(self) -> int:
        """Batches that its devices hold at once; 0 without devices."""

    @property
    def run_size(self) -> Callable[[int], int]:
        """Function from a batch's samples to the tower's size; holds no reference to the engine."""

    def run_sizes(self, largest: int) -> Sequence[int]:
        """All of the tower's sizes for batches of up to `largest` samples, ascending."""

    def memory_report(self) -> Sequence[str]:
        """A line for each device: estimated and used memory."""

    def run(
        self, batch: ModelInput, deadline: float = inf, *, may_default: bool = False
    ) -> BatchResult:
        """Scores a batch; RequestError if an id is outside a table whose policy is `error`.

        Args:
            deadline: for waits on other hosts, on the monotonic clock.
            may_default: allow default rows for those of a lost host; the result's `work` names
                their tables.
        """

    def embeddings(self, batch: ModelInput) -> Tensor:
        """Pooled embeddings on the host: fp32 `[rows, width]`, rows above B are zeros."""

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """Runs the tower on fp32 `[rows, ...]` inputs: fp32 `[rows]` or `[rows, K]` per output."""


def padded_dense(batch: ModelInput, rows: int) -> list[Tensor]:
    """Dense inputs of a batch, fp32 `[rows, width]` each, with zeros below its B samples."""
    return [_padded(tensor_of(array), batch.batch_size, rows) for array in batch.dense]


def _padded(array: Tensor, batch: int, rows: int) -> Tensor:
    if batch == rows:
        return array.expand(batch, -1).contiguous()
    padded = torch.zeros(rows, array.shape[1])
    padded[:batch] = array
    return padded
