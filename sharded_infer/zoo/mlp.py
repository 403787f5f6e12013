"""The multilayer perceptron used by every tower of the zoo."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from sharded_infer.errors import SpecError


class MLP(nn.Module):
    """Linear layers with ReLUs between them, and behind the last with `activate_last`.

    `sizes` are the input width, then the width of each layer. Raises SpecError for fewer than two,
    or one below 1.
    """

    def __init__(self, sizes: Sequence[int], *, activate_last: bool) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise SpecError(
                "an MLP's sizes must be its input width and at least one layer, "
                f"all positive, got {list(sizes)}"
            )
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if not activate_last:
            layers.pop()
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps float `[B, sizes[0]]` to `[B, sizes[-1]]` of the same dtype."""
        outputs: Tensor = self.layers(inputs)
        return outputs
