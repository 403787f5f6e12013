"""One step on rows: its inputs and operation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from kernels.abi.row_steps import StepKind
from kernels.errors import InputError


class Columns(NamedTuple):
    """Columns of a value: the inputs have the first numbers, then each step's result has one."""

    value: int
    first: int
    width: int


Source: TypeAlias = Columns | Tensor  # a tensor: fp32 `[width]`, the same for each row


@dataclass(frozen=True, slots=True, eq=False)
class RowStep:
    """One step.

    Attributes:
        sources: two of a sum, a difference, a product and what joins columns, else one.
        weight: fp32 `[N, K]` of a linear step; `[N]` of a norm, or None.
        bias: fp32 `[N]` of these, or None.
        epsilon: of a norm.
    """

    kind: StepKind
    sources: tuple[Source, ...]
    weight: Tensor | None = None
    bias: Tensor | None = None
    epsilon: float = 0.0

    @property
    def width(self) -> int:
        """Columns of the result."""
        if self.kind is StepKind.LINEAR and self.weight is not None:
            return len(self.weight)
        if self.kind is StepKind.JOINED:
            return sum(map(width_of, self.sources))
        return width_of(self.sources[0])


def width_of(source: Source) -> int:
    """Columns of a source."""
    return source.width if isinstance(source, Columns) else len(source)


def check_step(step: RowStep, number: int, known: Sequence[int]) -> None:
    """Checks a step by its number and the widths of the values before it.

    Raises InputError if it reads beyond them, or a source, a weight or a bias has another shape or
    dtype.
    """
    where = f"row steps: step {number} ({step.kind.name.lower()})"
    joins = step.kind is StepKind.JOINED
    two = joins or step.kind in (StepKind.SUM, StepKind.DIFFERENCE, StepKind.PRODUCT)
    widths = [width_of(one) for one in step.sources]
    if len(widths) != 1 + two or (not joins and len(set(widths)) != 1):
        raise InputError(
            f"{where}: expected {1 + two} sources{'' if joins else ' of one width'}, got {widths}"
        )
    for source in step.sources:
        if isinstance(source, Tensor):
            _check_constant(source, (len(source),), f"{where}: a source")
        elif not (
            0 <= source.value < len(known)
            and source.first >= 0
            and 0 < source.width <= known[source.value] - source.first
        ):
            raise InputError(f"{where}: reads {source} of values of widths {list(known)}")
    inputs = width_of(step.sources[0])
    linear = step.kind is StepKind.LINEAR
    if linear and (step.weight is None or step.weight.dim() != 2):
        raise InputError(f"{where}: expected a weight [N, {inputs}]")
    if step.kind > StepKind.NORM and (step.weight is not None or step.bias is not None):
        raise InputError(f"{where}: expected neither weight nor bias")
    if step.weight is not None:
        shape = (len(step.weight), inputs) if linear else (inputs,)
        _check_constant(step.weight, shape, f"{where}: weight")
    if step.bias is not None:
        _check_constant(step.bias, (step.width,), f"{where}: bias")


def _check_constant(tensor: Tensor, shape: tuple[int, ...], where: str) -> None:
    if tensor.dtype is not torch.float32 or tuple(tensor.shape) != shape:
        raise InputError(
            f"{where}: expected fp32 {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
        )
