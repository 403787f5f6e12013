"""Steps on rows in torch's operators."""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from kernels.abi.row_steps import StepKind
from kernels.sequences.row_step import Columns, RowStep
from kernels.sequences.row_steps import RowSteps

_BY_NUMBER: Final[Mapping[StepKind, Callable[[Tensor], Tensor]]] = {
    StepKind.RELU: functional.relu,
    StepKind.SIGMOID: torch.sigmoid,
    StepKind.SILU: functional.silu,
    StepKind.GELU: functional.gelu,
}


def row_steps_by_torch(steps: RowSteps, *inputs: Tensor) -> tuple[Tensor, ...]:
    """As a call of the steps; rows may broadcast."""
    values = list(inputs)
    for step in steps.steps:
        read = [
            values[one.value][..., one.first : one.first + one.width]
            if isinstance(one, Columns)
            else one
            for one in step.sources
        ]
        values.append(_step(step, *read))
    return tuple(values[len(steps.widths) + number] for number in steps.outputs)


def _step(step: RowStep, first: Tensor, second: Tensor | None = None) -> Tensor:
    if step.kind is StepKind.LINEAR and step.weight is not None:
        return functional.linear(first, step.weight, step.bias)
    if step.kind is StepKind.NORM:
        return functional.layer_norm(first, (step.width,), step.weight, step.bias, step.epsilon)
    if second is not None:
        if step.kind is StepKind.JOINED:
            rows = (first[..., :1] + second[..., :1]).shape[:-1]
            return torch.cat([one.expand(*rows, one.shape[-1]) for one in (first, second)], -1)
        if step.kind is StepKind.SUM:
            return first + second
        return first - second if step.kind is StepKind.DIFFERENCE else first * second
    return _BY_NUMBER[step.kind](first)
