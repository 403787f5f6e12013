"""The interface of what runs a model's batches, on the host or on devices."""

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
    """What a batch gave, and what it took.

    Attributes:
        scores: fp32 `[B]` or `[B, K]` of each output, in the spec's order.
        lookup_seconds: of routing, lookups and assembling; on devices, of writing the batch
            for them.
        tower_seconds: of the tower; on devices, until the scores were back.
        ids_outside: ids that were outside their tables (and ignored or wrapped).
    """

    scores: tuple[NDArray[np.float32], ...]
    lookup_seconds: float
    tower_seconds: float
    ids_outside: int
    work: LookupWork


class ModelEngine(Protocol):
    """Runs batches of one model; any thread may call."""

    @property
    def backends(self) -> Mapping[str, str]:
        """The kernel backend in use for each row format."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a batch's thread waits for devices: its cost is time, not processor time."""
        ...

    @property
    def device_slots(self) -> int:
        """Batches that its devices hold at once; 0: there are none."""
        ...

    @property
    def run_size(self) -> Callable[[int], int]:
        """The size that the tower runs a batch at, given its samples: as many, or more.

        Who keeps the function does not keep the engine.
        """
        ...

    def run_sizes(self, largest: int) -> Sequence[int]:
        """All sizes that the tower is run at for batches of up to `largest` samples, ascending."""
        ...

    def memory_report(self) -> Sequence[str]:
        """A line for each device: what was estimated and what is held."""
        ...

    def run(
        self, batch: ModelInput, deadline: float = inf, *, may_default: bool = False
    ) -> BatchResult:
        """Scores a batch.

        Args:
            deadline: until which other hosts are waited for, on the monotonic clock.
            may_default: whether default rows may stand for those of a host that is lost; the
                result's `work` says of which tables.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
        """
        ...

    def embeddings(self, batch: ModelInput) -> Tensor:
        """Pooled embeddings on the host: fp32 `[rows, width]`, rows above B are zeros.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
        """
        ...

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """Runs the tower on inputs of the host.

        Args:
            dense: fp32 `[rows, width]` each.
            embeddings: fp32 `[rows, width]`.

        Returns:
            fp32 `[rows]` or `[rows, K]` of each output, on the host.
        """
        ...


def padded_dense(batch: ModelInput, rows: int) -> list[Tensor]:
    """A batch's dense inputs with a row for each sample, and zeros below.

    Args:
        batch: B samples.
        rows: at least B.

    Returns:
        fp32 `[rows, width]` each.
    """
    return [_padded(tensor_of(array), batch.batch_size, rows) for array in batch.dense]


def _padded(array: Tensor, batch: int, rows: int) -> Tensor:
    if batch == rows:
        return array.expand(batch, -1).contiguous()
    padded = torch.zeros(rows, array.shape[1])
    padded[:batch] = array
    return padded
