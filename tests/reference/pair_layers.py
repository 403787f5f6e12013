"""Layers on pairs in torch's operators."""

import torch
from torch import Tensor

from kernels.abi.pair_layers import Activation
from kernels.sequences.pair_layers import PairLayers


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
        if layer.activation is Activation.RELU:
            y = y.relu()
        elif layer.activation is Activation.SLOPE and layer.slope is not None:
            y = torch.where(y > 0, y, layer.slope * y)
        elif layer.activation is Activation.SIGMOID:
            y = y.sigmoid()
    return y.squeeze(-1)
