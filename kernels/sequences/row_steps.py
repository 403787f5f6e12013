"""Steps that compute each row by itself, in one compiled pass.

Such steps lie between a transformer's attentions: linear layers, norms, residual sums. The compiled
pass (`native/abi/row_steps.h`) runs all on some rows at a time, in the cache. A row's result
depends on that row alone, to the bit; its last bits are not torch's.
"""

import ctypes
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from kernels.abi import row_steps as abi
from kernels.abi.passes import RowsOfPass
from kernels.abi.row_steps import StepKind
from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set
from kernels.sequences.row_step import (
    Columns,
    RowStep,
    Source,
    check_step,
    width_of,
)

_TILE: Final = 24  # rows at a time
# Numbers of a `StepMemory`. Arrays of whole numbers are made much faster than arrays of structures.
_MEMORY: Final = len(abi.StepMemory._fields_)


class RowSteps:
    """The pass, prepared for its steps; thread-safe.

    Args:
        widths: columns of each input.
        steps: each reads inputs, results of steps before it, and constants.
        outputs: numbers of the steps whose results are wanted.

    Attributes:
        output_widths: columns of each wanted result.
        constants: of the steps, for a count of the program's memory.

    Raises:
        InputError: a step reads a missing value, or has sources, a weight or a bias of other shapes
            or dtypes, or the machine lacks the instruction set.
    """

    def __init__(
        self,
        widths: Sequence[int],
        steps: Sequence[RowStep],
        outputs: Sequence[int],
        *,
        instruction_set: InstructionSet | None = None,
    ) -> None:
        self.widths, self.steps, self.outputs = list(widths), tuple(steps), tuple(outputs)
        known = list(widths)
        for number, step in enumerate(self.steps):
            check_step(step, number, known)
            known.append(step.width)
        if not self.outputs or not all(0 <= one < len(self.steps) for one in self.outputs):
            raise InputError(f"row steps: {len(self.steps)} steps, wanted results of {outputs}")
        self.output_widths = [self.steps[one].width for one in self.outputs]
        self.instruction_set = chosen_set(instruction_set, "row steps")
        self.constants: list[Tensor] = []
        self._prepare(abi.row_panel_columns(self.instruction_set))

    def _prepare(self, panel: int) -> None:
        tensors = len(self.widths) + len(self.outputs)
        places = {value: (value, 0) for value in range(len(self.widths))}
        for number, output in enumerate(self.outputs):
            places[len(self.widths) + output] = len(self.widths) + number, 0
        scratch, own = tensors, _Scratch()
        # Behind those of the tensors and the scratch.
        self._constant_memories: list[int] = []
        last_reader = {
            source.value: number
            for number, step in enumerate(self.steps)
            for source in step.sources
            if isinstance(source, Columns)
        }
        self._fields = (abi.RowStep * len(self.steps))()
        for number, step in enumerate(self.steps):
            value = len(self.widths) + number
            if value not in places:
                places[value] = scratch, own.take(step.width)
            read = [self._read(source, places) for source in step.sources]
            weight = step.weight
            if step.kind is StepKind.LINEAR and weight is not None:
                weight = _panels(weight, panel)
            inputs = width_of(step.sources[0])
            self._fields[number] = abi.RowStep(
                self._hold(weight),
                self._hold(step.bias),
                read[0],
                read[-1],
                abi.StepColumns(*places[value]),
                *(inputs, step.width, step.epsilon, step.kind),
            )
            for done in {one.value for one in step.sources if isinstance(one, Columns)} | {value}:
                if last_reader.get(done, number) == number and places[done][0] == scratch:
                    own.give_back(places[done][1], self._width_of(done))
        self._scratch_width = own.width
        count = _MEMORY * (tensors + 1) + len(self._constant_memories)
        self._memories_type = ctypes.c_int64 * count

    def _read(self, source: Source, places: dict[int, tuple[int, int]]) -> abi.StepColumns:
        if isinstance(source, Columns):
            memory, first = places[source.value]
            return abi.StepColumns(memory, first + source.first)
        self._constant_memories += (self._hold(source) or 0, 0, 0)
        tensors = len(self.widths) + len(self.outputs)
        return abi.StepColumns(tensors + len(self._constant_memories) // _MEMORY, 0)

    def _hold(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self.constants.append(tensor.detach().contiguous())
        return self.constants[-1].data_ptr()

    def _width_of(self, value: int) -> int:
        inputs = len(self.widths)
        return self.widths[value] if value < inputs else self.steps[value - inputs].width

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs the steps on fp32 `[..., width]` inputs of the same rows.

        Returns fp32 `[..., width]` of each wanted result. Raises InputError if an input has another
        dtype, width or number of rows.
        """
        shape = inputs[0].shape[:-1]
        addresses: list[int] = []
        held = []
        for number, (one, width) in enumerate(zip(inputs, self.widths, strict=True)):
            if one.shape != (*shape, width) or one.dtype is not torch.float32:
                raise InputError(
                    f"row steps: input {number}: expected fp32 {[*shape, width]}, "
                    f"got {one.dtype} {list(one.shape)}"
                )
            stride = width
            if not one.is_contiguous():
                one = _flat(one)
                held.append(one)
                stride = one.stride()[0]
            addresses += (one.data_ptr(), stride, stride)
        made = []
        for width in self.output_widths:
            one = torch.empty(*shape, width)
            made.append(one)
            addresses += (one.data_ptr(), width, width)
        scratch = torch.empty(_TILE * self._scratch_width)
        addresses += (scratch.data_ptr(), self._scratch_width, 0)
        memories = self._memories_type(*addresses, *self._constant_memories)
        call = abi.RowSteps(
            ctypes.addressof(memories),
            ctypes.addressof(self._fields),
            *(len(self.steps), shape.numel(), _TILE),
        )
        abi.row_steps(self.instruction_set, call)
        return tuple(made)

    def fields(self) -> tuple[RowsOfPass, object]:
        """The steps for other compiled code, and an owner to keep, beside these steps."""
        held = (ctypes.c_int64 * len(self._constant_memories))(*self._constant_memories)
        made = RowsOfPass(
            ctypes.addressof(self._fields),
            len(self.steps),
            ctypes.addressof(held),
            len(self._constant_memories) // _MEMORY,
            self._scratch_width,
            _TILE,
        )
        return made, held


class _Scratch:
    """Columns for the numbers between steps, reused after their last reader."""

    def __init__(self) -> None:
        self.width = 0
        self._free: list[tuple[int, int]] = []  # width, first

    def take(self, width: int) -> int:
        for one in sorted(self._free):
            if one[0] >= width:
                self._free.remove(one)
                return one[1]
        first = self.width
        self.width += width
        return first

    def give_back(self, first: int, width: int) -> None:
        self._free.append((width, first))


def _flat(tensor: Tensor) -> Tensor:
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    return rows if rows.stride()[1] == 1 else rows.contiguous()


def _panels(weight: Tensor, columns: int) -> Tensor:
    """A weight `[N, K]` in the compiled layout: whole lanes of columns, panel by panel."""
    padded = weight.new_zeros(weight.shape[1], -(-len(weight) // 16) * 16)
    padded[:, : len(weight)] = weight.t()
    return torch.cat([panel.flatten() for panel in torch.split(padded, columns, 1)])
