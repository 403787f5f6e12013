import pytest
import torch
from torch import Tensor, nn

from sharded_infer.engines.device.tower.memory import LiveBytes, peak_bytes
from sharded_infer.errors import TowerError

BLOCK = 512


def test_memory_counts_from_its_maker_to_its_last_reader() -> None:
    given = torch.zeros(256)
    with torch.no_grad(), LiveBytes([given]) as live:
        one = given + 1  # 1,024 bytes
        two = one.to(torch.float64)  # 2,048
        del one
        three = two[:128].float()  # 512, beside 2,048
        del two
        four = three.view(2, 64)
        del three
        five = four + 1  # 512 beside 512
    assert live.peak == 3 * 1024
    assert five.shape == four.shape


def test_views_and_what_was_given_cost_nothing() -> None:
    given = torch.zeros(4, 64)
    with torch.no_grad(), LiveBytes([given]) as live:
        view = given.t()[3:].unsqueeze(0)
    assert live.peak == 0 and view.shape == (1, 61, 4)


def test_sizes_are_rounded_up_to_blocks() -> None:
    with torch.no_grad():
        for numbers, blocks in ((1, 1), (128, 1), (129, 2)):
            with LiveBytes([]) as live:
                torch.zeros(numbers)
            assert live.peak == blocks * BLOCK


def test_an_operator_whose_shapes_are_unknown_is_named() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nonzero(x)

    with pytest.raises(TowerError, match="activations is unknown: .*nonzero"):
        peak_bytes(Unknown(), [torch.empty(3, device="meta")])
