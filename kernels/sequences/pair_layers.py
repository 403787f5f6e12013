"""Layers on each pair of a candidate and a position, in one compiled pass.

    y = (positions * candidate) @ W.T + by_position + by_candidate       for each candidate
    y = activation(y) @ W.T + bias                                       for each further layer
    out = y                                                              one number a pair

For example a Deep Interest Network's weights of a history. The compiled pass
(`kernels/native/pair_layers.h`) keeps layers' inputs and outputs in the cache. Its first product
multiplies the weight by the candidate instead of the positions, so that its last bits are not
torch's.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import torch
from torch import Tensor

from kernels.dense_step import tensor_address
from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set
from kernels.native_library import load_library


class Activation(IntEnum):
    """Function of a layer's sum; the values are those of kernels/native/pair_layers.h."""

    LINEAR = 0
    RELU = 1
    SLOPE = 2  # of numbers below 0: PReLU
    SIGMOID = 3


@dataclass(frozen=True, slots=True, eq=False)
class PairLayer:
    """One layer: fp32 `[N, K]` weight, `[N]` bias; `[N]` slope with `Activation.SLOPE`."""

    weight: Tensor
    bias: Tensor | None = None
    activation: Activation = Activation.LINEAR
    slope: Tensor | None = None


class _Layer(ctypes.Structure):
    """`Layer` of kernels/native/pair_layers.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("slope", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("activation", ctypes.c_int32),
    )


class _PairLayers(ctypes.Structure):
    """`PairLayers` of kernels/native/pair_layers.h."""

    _fields_ = (
        ("positions", ctypes.c_void_p),
        ("candidates", ctypes.c_void_p),
        ("by_position", ctypes.c_void_p),
        ("by_candidate", ctypes.c_void_p),
        ("layers", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("space", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("layer_count", ctypes.c_int64),
    )


def _load() -> ctypes.CDLL:
    library = load_library("kernels")
    call, space = library.sharded_infer_pair_layers, library.sharded_infer_pair_layers_space
    call.restype, space.restype = None, ctypes.c_int64
    call.argtypes = (ctypes.c_int32, ctypes.POINTER(_PairLayers))
    space.argtypes = (ctypes.POINTER(_PairLayers),)
    return library


_LIBRARY = _load()


class PairLayers:
    """The pass, prepared for its layers; thread-safe.

    Raises:
        InputError: the layers do not follow each other, or end with more than one output, or the
            machine lacks the instruction set.
    """

    def __init__(
        self, layers: Sequence[PairLayer], *, instruction_set: InstructionSet | None = None
    ) -> None:
        self.layers = tuple(map(_checked, layers))
        widths = [tuple(one.weight.shape) for one in self.layers]
        follows = all(b[1] == a[0] for a, b in pairwise(widths))
        if not widths or not follows or widths[-1][0] != 1:
            raise InputError(f"pair layers: expected layers that end with one output, got {widths}")
        self._set = chosen_set(instruction_set, "pair layers")
        self._fields = (_Layer * len(self.layers))(*map(_fields_of, self.layers))

    def __call__(
        self,
        positions: Tensor,
        candidates: Tensor,
        by_position: Tensor | None = None,
        by_candidate: Tensor | None = None,
    ) -> Tensor:
        """Runs the layers: fp32 `[C, L]`.

        Args:
            positions: fp32 `[L, K]`.
            candidates: fp32 `[C, K]`.
            by_position: fp32 `[L, N]` of the first layer's N, added to its sums.
            by_candidate: fp32 `[C, N]`, likewise.

        Raises:
            InputError: a shape or dtype is another one.
        """
        outputs, inputs = self.layers[0].weight.shape
        length, count = len(positions), len(candidates)
        positions = _like(positions, (length, inputs), "positions")
        candidates = _like(candidates, (count, inputs), "candidates")
        if by_position is not None:
            by_position = _like(by_position, (length, outputs), "by_position")
        if by_candidate is not None:
            by_candidate = _like(by_candidate, (count, outputs), "by_candidate")
        out = torch.empty(count, length)
        call = _PairLayers(
            positions.data_ptr(),
            candidates.data_ptr(),
            tensor_address(by_position),
            tensor_address(by_candidate),
            ctypes.addressof(self._fields),
            out.data_ptr(),
            None,
            count,
            length,
            len(self.layers),
        )
        space = torch.empty(_LIBRARY.sharded_infer_pair_layers_space(call))
        call.space = space.data_ptr()
        _LIBRARY.sharded_infer_pair_layers(self._set, call)
        return out

    def by_torch(
        self,
        positions: Tensor,
        candidates: Tensor,
        by_position: Tensor | None = None,
        by_candidate: Tensor | None = None,
    ) -> Tensor:
        """The reference in torch's operators."""
        y = positions * candidates.unsqueeze(1)
        for number, layer in enumerate(self.layers):
            y = torch.nn.functional.linear(y, layer.weight, layer.bias)
            if number == 0 and by_position is not None:
                y = y + by_position
            if number == 0 and by_candidate is not None:
                y = y + by_candidate.unsqueeze(1)
            y = _activated(layer, y)
        return y.squeeze(-1)


def _activated(layer: PairLayer, y: Tensor) -> Tensor:
    if layer.activation is Activation.RELU:
        return y.relu()
    if layer.activation is Activation.SLOPE and layer.slope is not None:
        return torch.where(y > 0, y, layer.slope * y)
    return y.sigmoid() if layer.activation is Activation.SIGMOID else y


def _checked(layer: PairLayer) -> PairLayer:
    outputs = len(layer.weight)
    if (layer.slope is not None) != (layer.activation is Activation.SLOPE):
        raise InputError("pair layers: expected a slope with that activation and with no others")
    bias, slope = (
        None if one is None else _like(one.detach(), (outputs,), name)
        for one, name in ((layer.bias, "bias"), (layer.slope, "slope"))
    )
    weight = _like(layer.weight.detach(), (outputs, layer.weight.shape[-1]), "weight")
    return PairLayer(weight, bias, layer.activation, slope)


def _fields_of(layer: PairLayer) -> _Layer:
    outputs, inputs = layer.weight.shape
    return _Layer(
        layer.weight.data_ptr(),
        tensor_address(layer.bias),
        tensor_address(layer.slope),
        inputs,
        outputs,
        layer.activation,
    )


def _like(tensor: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    if tensor.dtype is not torch.float32 or tuple(tensor.shape) != shape:
        wanted = f"fp32 {list(shape)}"
        raise InputError(
            f"pair layers: {name}: expected {wanted}, got {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor.contiguous()
