"""The tower's part of a batch, as captured in a CUDA graph.

parts   -> columns of the tower's input, copied or added
means   of features whose rows are split across ranks: sums times reciprocal bag lengths
shared  features: each sample gets the columns of its bag
tower   -> scores, copied to pinned memory
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sharded_infer.engines.device.input_layout import InputViews
from sharded_infer.lookups.columns import ColumnRun, SplitFeatures


class Scorer(Protocol):
    """A tower on a device; see `DeviceTower`."""

    output_widths: tuple[int | None, ...]
    memory_bytes: int

    def activation_bytes(self, batch: int) -> int:
        """Peak bytes of the tensors that a call allocates, including its results."""
        ...

    def __call__(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """Starts scoring a batch; returns fp32 `[B]` or `[B, K]` for each output."""
        ...


TowerMaker = Callable[[torch.device], Scorer]


@dataclass(frozen=True, slots=True)
class ArrivedPart:
    """A device's part, fp32 `[B, part_width]`, in the memory of the tower's device."""

    columns: Tensor
    runs: tuple[ColumnRun, ...]


def assemble_inputs(
    pooled: Tensor,
    parts: Sequence[ArrivedPart],
    inputs: InputViews,
    split: SplitFeatures,
) -> None:
    """Assembles the tower's sparse input, fp32 `[B, width]`, from all parts.

    `pooled` holds the columns looked up on this device, and is written.
    """
    for column, width in split.columns:
        pooled[:, column : column + width].zero_()
    for part in parts:
        for run in part.runs:
            target = pooled[:, run.column : run.column + run.width]
            source = part.columns[:, run.source : run.source + run.width]
            if run.added:
                target.add_(source)
            else:
                target.copy_(source)
    columns = dict(zip(split.features, split.columns, strict=True))
    for number, feature in enumerate(split.means):
        column, width = columns[feature]
        pooled[:, column : column + width].mul_(inputs.factors[number][:, None])


def spread_shared(pooled: Tensor, inputs: InputViews) -> Tensor:
    """A new tensor with the columns of each sample's own bag, where samples share bags."""
    spread = pooled.index_select(0, inputs.owners)
    return torch.where(inputs.shared[None, :], spread, pooled)


def score_into(
    tower: Scorer, inputs: InputViews, embeddings: Tensor, scores: Sequence[Tensor]
) -> None:
    """Runs the tower on fp32 `[B, width]` embeddings and copies its outputs.

    `scores` is pinned memory, fp32 `[B]` or `[B, K]` for each output; written.
    """
    for target, score in zip(scores, tower(inputs.dense, embeddings), strict=True):
        target.copy_(score, non_blocking=True)
