import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.tf32 import emulate_tf32, round_to_tf32
from tests.sharded_infer.towers.stored import Signature, read_back

STEP = 2.0**-10  # between TF32 numbers from 1 to 2


def rounded(*values: float) -> list[float]:
    found: list[float] = round_to_tf32(torch.tensor(values, dtype=torch.float32)).tolist()
    return found


def test_a_number_becomes_the_nearest_with_ten_bits_and_a_tie_goes_away_from_zero() -> None:
    below, above = math.nextafter(0.5 * STEP, 0), 0.51 * STEP
    assert rounded(1 + 0.49 * STEP, 1 + above, -1 - above) == [1, 1 + STEP, -1 - STEP]
    assert rounded(3 + below) == [3] and rounded(0.0, 2.0**-20, 1024.0) == [0, 2.0**-20, 1024]
    for even_or_odd in (1.0, 1.0 + STEP):
        [up, down] = rounded(even_or_odd + STEP / 2, -even_or_odd - STEP / 2)
        assert up == even_or_odd + STEP and down == -up
    largest = float(np.finfo(np.float32).max)
    assert rounded(largest, -largest, math.inf) == [math.inf, -math.inf, math.inf]
    assert math.isnan(rounded(math.nan)[0])


def test_of_all_numbers_thirteen_bits_are_gone_and_half_a_step_at_most_is_lost() -> None:
    bits = torch.randint(0, 2**32, (100_000,), generator=torch.Generator().manual_seed(1))
    numbers = bits.to(torch.int32).view(torch.float32)
    numbers = numbers[numbers.isfinite() & (numbers.abs() > 1e-37) & (numbers.abs() < 1e38)]
    found = round_to_tf32(numbers)
    assert not (found.view(torch.int32) & 0x1FFF).any()
    assert ((found.double() - numbers.double()).abs() / numbers.abs()).max() <= STEP / 2


class Every(nn.Module):
    """Every product, inner ones all but the last; no addend is a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
        self.top = nn.Linear(8, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        return self.compute(embeddings, lambda factor: factor)

    def compute(self, x: Tensor, seen: object) -> Tensor:
        assert callable(seen)
        weight = seen(self.weight)
        x = torch.nn.functional.linear(seen(x), weight, self.shift[0])
        x = torch.addmm(self.shift[1], seen(x), weight)
        x = torch.matmul(seen(x), weight) + torch.mm(seen(x), weight)
        x = torch.einsum("bi,ij->bj", seen(x), weight)
        pairs = x.view(-1, 2, 4)
        turned = pairs.transpose(1, 2)
        both = torch.bmm(seen(pairs), seen(turned)) + torch.baddbmm(
            self.shift[:2, :2], seen(pairs), seen(turned)
        )
        score: Tensor = self.top(torch.cat([both.flatten(1), x[:, :4]], dim=1))
        return score.squeeze(1)


def program_of(module: nn.Module, precision: Precision) -> GraphModule:
    return read_back(Signature(8).export(module, precision))


def test_inner_products_of_every_kind_get_rounded_factors_and_the_last_none() -> None:
    torch.manual_seed(0)
    module = Every()
    program = program_of(module, Precision.TF32)
    x = torch.randn(50, 8)
    plain = program(x)[0]
    assert emulate_tf32(program) == 7
    with torch.no_grad():
        expected = module.compute(x, round_to_tf32)
    torch.testing.assert_close(program(x)[0], expected, rtol=1e-3, atol=1e-3)
    assert (program(x)[0] - expected).abs().mean() < 0.05 * (plain - expected).abs().mean()


def test_a_weight_that_the_last_product_shares_is_not_changed() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, embeddings: Tensor) -> Tensor:
            once = self.layer(embeddings)
            return torch.cat([self.layer(once), once], dim=1)

    torch.manual_seed(0)
    module = Shared()
    program = program_of(module, Precision.TF32)
    assert emulate_tf32(program) == 1
    x = torch.randn(5, 8)
    weight, bias = module.layer.weight.detach(), module.layer.bias.detach()
    once = round_to_tf32(x) @ round_to_tf32(weight).t() + bias
    expected = torch.cat([once @ weight.t() + bias, once], dim=1)
    torch.testing.assert_close(program(x)[0], expected, rtol=1e-6, atol=1e-6)


def test_a_program_in_a_low_precision_is_none_of_tf32() -> None:
    torch.manual_seed(0)
    with pytest.raises(TowerError, match="expected weights in fp32, got one in torch.bfloat16"):
        emulate_tf32(program_of(Every(), Precision.BF16))
