"""A few steps of training, so that weights are not what they were drawn as."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def train(
    model: nn.Module, loss: Callable[[Any], Tensor], *arguments: Any, steps: int = 30
) -> None:
    """Trains on one batch, and leaves the model in evaluation mode.

    Args:
        model: to train.
        loss: of what the model returns.
        arguments: the model's.
        steps: of Adam.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(*arguments)).backward()
        optimizer.step()
    model.eval()
