import pytest
import torch
from torch import Tensor

from sharded_infer.errors import InputError
from sharded_infer.towers.lowering.int8 import Int8Weight, calibrate_product
from sharded_infer.towers.program.int8_linear import int8_linear


def drawn(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def relative_error(made: Int8Weight, weight: Tensor, x: Tensor) -> float:
    expected = x @ weight.t()
    return float((made.apply(x) - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", ["even", "uneven columns", "uneven rows", "positive", "outlier"])
def test_a_product_keeps_two_digits(kind: str) -> None:
    weight, samples, fresh = drawn(96, 80, 1), drawn(512, 80, 2), drawn(256, 80, 3)
    if kind == "uneven columns":
        columns = torch.logspace(-2, 2, 80)
        samples, fresh, weight = samples * columns, fresh * columns, weight / columns
    if kind == "uneven rows":
        weight = weight * torch.logspace(-3, 3, 96)[:, None]
    if kind == "positive":
        samples, fresh = samples.relu(), fresh.relu()
    if kind == "outlier":
        samples[7, 3] = 60.0
    assert relative_error(calibrate_product(weight, samples), weight, fresh) < 0.025


def test_what_never_varies_is_quantized_too() -> None:
    weight, samples = drawn(64, 64, 1), torch.zeros(16, 64)
    weight[5] = 0
    weight[:, 9] = 0
    made = calibrate_product(weight, samples)
    assert torch.equal(made.apply(samples), torch.zeros(16, 64))
    for tensor in (made.weight_scale, made.inverse_scale):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("where", ["weight", "samples"])
def test_what_is_no_number_is_refused(where: str) -> None:
    weight, samples = drawn(64, 64, 1), drawn(16, 64, 2)
    (weight if where == "weight" else samples)[2, 2] = float("nan")
    with pytest.raises(InputError, match="expected finite"):
        calibrate_product(weight, samples)


def test_the_operator_is_its_formula() -> None:
    x, bias = drawn(5, 64, 4), drawn(1, 64, 5)[0]
    made = calibrate_product(drawn(64, 64, 1), drawn(128, 64, 2))
    levels = (x * made.inverse_scale + made.zero_point).round().clamp(0, 255) - made.zero_point
    exact = levels.double() @ made.weight.double().t()
    expected = exact * made.weight_scale.double() + bias
    got = int8_linear(x, made.weight, made.weight_scale, bias, made.inverse_scale, made.zero_point)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
