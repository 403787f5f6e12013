"""Passes over the positions of requests' sequences, and their candidates, in one call.

A Python call takes as long as a third of a pass's work. Here a user's stage of adjacent passes is
one compiled call (`native/abi/passes.h`), with the same bits.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi import passes as abi
from kernels.abi.passes import POSITIONS, PassKind
from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set
from kernels.native_library import address_of, read_address
from kernels.sequences.attention import Attention
from kernels.sequences.pair_biases import StepFunction, pair_bias_fields
from kernels.sequences.row_steps import RowSteps
from kernels.sequences.user_states import Prefixes

# As `passes` returns them.
_NO_MEMORY, _WRONG_NUMBERS = 1, 3


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Fp32 rows without gaps.

    Attributes:
        rows, width: numbers, or `POSITIONS`; rows may be `CANDIDATES`.
        constant: its content, if it is the same in every call.
    """

    rows: int
    width: int
    constant: Tensor | None = None


class Operand(NamedTuple):
    """Rows and columns of a memory, from a row, `LAST_ROW` or `LAST_ROWS` on."""

    memory: Memory
    column: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class RowStepping:
    """Row steps of all positions, of all candidates, or of one row.

    Attributes:
        operands: inputs, then outputs. Candidates share the memories that have one row.
        rows: `POSITIONS`, `CANDIDATES` or 1.
    """

    steps: RowSteps
    operands: Sequence[Operand]
    rows: int = POSITIONS


@dataclass(frozen=True, slots=True)
class Attending:
    """An attention on rows whose columns are those of all heads, over all positions.

    Attributes:
        operands: query, key, value and out, then a bias if it has one.
        width, value_width: columns of a head.
        queries: `POSITIONS` or 1.
    """

    attention: Attention
    heads: int
    width: int
    value_width: int
    operands: Sequence[Operand]
    queries: int = POSITIONS


@dataclass(frozen=True, slots=True)
class PairBiasing:
    """Biases of pairs of positions; see `kernels.sequences.pair_biases`.

    Attributes:
        operands: numbers, out, and the fixed addend if there is one.
        turned, causal: as of `pair_bias_fields`.
    """

    function: StepFunction
    operands: Sequence[Operand]
    turned: bool = False
    causal: bool = False


class StateColumns(NamedTuple):
    """Columns of a memory with a row for each position, on which later positions depend."""

    memory: Memory
    column: int
    width: int


AnyPass: TypeAlias = RowStepping | Attending | PairBiasing


class Passes:
    """The passes of one call, prepared; thread-safe.

    Args:
        inputs, outputs: of a call.
        passes: in order; each reads inputs, constants and results of those before it.
        states: of positions, with which calls compute those behind them; empty if none can.

    Raises:
        InputError: the machine lacks the instruction set, or row steps are prepared for another
            one.
    """

    def __init__(
        self,
        inputs: Sequence[Memory],
        outputs: Sequence[Memory],
        passes: Sequence[AnyPass],
        *,
        states: Sequence[StateColumns] = (),
        instruction_set: InstructionSet | None = None,
    ) -> None:
        self._set = chosen_set(instruction_set, "passes")
        self._held: list[object] = []
        used = (operand.memory for one in passes for operand in one.operands)
        memories = dict.fromkeys((*inputs, *outputs, *used))
        self._numbers = {memory: number for number, memory in enumerate(memories)}
        self._memories = (abi.PassMemory * len(memories))(*map(self._memory, memories))
        self._passes = (abi.Pass * len(passes))(*map(self._pass, passes))
        self._states = (abi.StateOfPasses * len(states))(
            *(abi.StateOfPasses(self._numbers[one.memory], *one[1:]) for one in states)
        )
        given = len(inputs) + len(outputs)
        self._given_type, self._numbers_type = ctypes.c_void_p * given, ctypes.c_int64 * given
        self._fields = abi.Passes(
            *(ctypes.addressof(self._memories), len(memories)),
            *(ctypes.addressof(self._passes), len(passes)),
            *(given, len(inputs)),
            *(ctypes.addressof(self._states), len(states)),
        )
        self._address = ctypes.addressof(self._fields)

    def _memory(self, memory: Memory) -> abi.PassMemory:
        if memory.constant is None:
            return abi.PassMemory(None, memory.rows, memory.width)
        held = memory.constant.detach().contiguous()
        self._held.append(held)
        return abi.PassMemory(held.data_ptr(), memory.rows, memory.width)

    def _pass(self, one: AnyPass) -> abi.Pass:
        operands = (abi.PassOperand * len(one.operands))(
            *(
                abi.PassOperand(self._numbers[each.memory], each.column, each.row)
                for each in one.operands
            )
        )
        rows = POSITIONS
        details: ctypes.Structure
        if isinstance(one, RowStepping):
            kind, rows = PassKind.ROWS, one.rows
            own = one.steps.instruction_set
            if own is not self._set:
                name = "none" if own is None else own.name.lower()
                raise InputError(f"passes: got row steps prepared for {name}")
            details, held = one.steps.fields()
            self._held += [one.steps, held]
        elif isinstance(one, Attending):
            kind, rows = PassKind.ATTENTION, one.queries
            details = one.attention.fields(one.heads, one.width, one.value_width)
        else:
            kind = PassKind.PAIR_BIASES
            details = pair_bias_fields(one.function, turned=one.turned, causal=one.causal)
            self._held.append(one.function)
        self._held += [operands, details]
        return abi.Pass(
            ctypes.addressof(operands), len(operands), ctypes.addressof(details), kind, rows
        )

    def __call__(
        self,
        positions: NDArray[np.int64],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        candidates: NDArray[np.int64] | None = None,
        prefixes: Prefixes | None = None,
    ) -> bool:
        """Runs the passes for R requests; returns False if a known block is no longer kept.

        Args:
            positions: int64 `[R]`, at least 1 each, with those that are known.
            inputs: fp32 and contiguous, of any shapes with the memories' rows and columns, those of
                one request after another.
            outputs: likewise; written.
            candidates: int64 `[R]`, rows of the memories that have one for each.
            prefixes: positions whose states are known, or to be kept. Inputs with a row for each
                position have those behind the known ones.

        Raises:
            InputError: a tensor has another dtype or number of elements, or has gaps.
            MemoryError: there is none for the memories between the passes.
        """
        given = (*inputs, *outputs)
        for tensor in given:
            if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
                raise InputError(
                    "passes: expected fp32 without gaps, "
                    f"got {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"
                )
        addresses = self._given_type(*[tensor.data_ptr() for tensor in given])
        numbers = self._numbers_type(*[tensor.numel() for tensor in given])
        run = abi.PassesRun(
            self._address,
            *(ctypes.addressof(addresses), ctypes.addressof(numbers)),
            read_address(positions),
            None if candidates is None else address_of(candidates),
            None if prefixes is None else address_of(prefixes.blocks),
            len(positions),
        )
        failed = abi.passes(self._set, run)
        if failed == _NO_MEMORY:
            raise MemoryError(f"passes: no memory for {positions.tolist()} positions")
        if failed == _WRONG_NUMBERS:
            raise InputError(
                f"passes: expected {run.expected} numbers, got {list(given[run.memory].shape)}"
            )
        return not failed
