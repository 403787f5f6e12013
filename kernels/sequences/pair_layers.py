"""Layers on each pair of a candidate and a position, in one compiled pass.

    y = (positions * candidate) @ W.T + by_position + by_candidate       for each candidate
    y = activation(y) @ W.T + bias                                       for each further layer
    out = y                                                              one number a pair

For example a Deep Interest Network's weights of a history. The compiled pass
(`native/abi/pair_layers.h`) keeps layers' inputs and outputs in the cache. Its first product
multiplies the weight by the candidate instead of the positions, so that its last bits are not
torch's.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernels.abi import pair_layers as abi
from kernels.abi.pair_layers import Activation
from kernels.dense_step import tensor_address
from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set


@dataclass(frozen=True, slots=True, eq=False)
class PairLayer:
    """One layer: fp32 `[N, K]` weight, `[N]` bias; `[N]` slope with `Activation.SLOPE`."""

    weight: Tensor
    bias: Tensor | None = None
    activation: Activation = Activation.LINEAR
    slope: Tensor | None = None


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
        self._fields = (abi.Layer * len(self.layers))(*map(_fields_of, self.layers))

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
        call = abi.PairLayers(
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
        space = torch.empty(abi.pair_layers_space(call))
        call.space = space.data_ptr()
        abi.pair_layers(self._set, call)
        return out


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


def _fields_of(layer: PairLayer) -> abi.Layer:
    outputs, inputs = layer.weight.shape
    return abi.Layer(
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
