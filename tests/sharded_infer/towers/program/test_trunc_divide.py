import pytest
import torch
from torch import Tensor, nn

from sharded_infer.towers.program.operators import TRUNC_DIVIDE, TRUNC_DIVIDE_NUMBER
from tests.sharded_infer.towers.stored import Signature, read_back


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32], ids=str)
def test_it_divides_as_torch_does_and_the_least_integer_too(dtype: torch.dtype) -> None:
    values = torch.arange(-9, 10).to(dtype)
    for divisor in (-7, -3, -1, 1, 2, 9):
        expected = torch.div(values, divisor, rounding_mode="trunc")
        for found in (
            TRUNC_DIVIDE_NUMBER(values, divisor),
            TRUNC_DIVIDE(values, torch.full_like(values, divisor)),
        ):
            assert found.dtype is expected.dtype and torch.equal(found, expected)
    if dtype.is_floating_point:
        return
    least = torch.full((9,), torch.iinfo(dtype).min, dtype=dtype)
    assert torch.equal(TRUNC_DIVIDE_NUMBER(least, -1), least)
    assert torch.equal(TRUNC_DIVIDE(least, torch.full_like(least, -1)), least)


class Dividing(nn.Module):
    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        whole = dense.long()
        quotients = torch.div(whole, torch.full_like(whole, -1), rounding_mode="trunc")
        both = quotients + torch.div(whole, -3, rounding_mode="trunc")
        return both.float().sum(1) + embeddings.sum(1)


def test_a_stored_program_survives_the_least_integer_by_minus_one() -> None:
    stored = read_back(Signature(1, {"dense": 2}).export(Dividing()))
    fine = torch.tensor([[7.0, -8.0]])
    embeddings = torch.ones(1, 1)
    assert torch.equal(stored(fine, embeddings)[0], Dividing()(fine, embeddings))
    # Converted to the least integer.
    assert torch.isfinite(stored(torch.tensor([[-1e19, 1.0]]), embeddings)[0]).all()
