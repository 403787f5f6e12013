"""Layers on pairs in torch's operators."""

import torch
from torch import Tensor

from kernels.sequences.pair_layers import Activation, PairLayer, PairLayers


def pair_layers_by_torch(
    layers: PairLayers,
    positions: Tensor,
    candidates: Tensor,
    by_position: Tensor | None = None,
    by_candidate: Tensor | None = None,
) -> Tensor:
    """As a call of the layers."""
    y = positions * candidates.unsqueeze(1)
    for number, layer in enumerate(layers.layers):
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
