import pytest
import torch

from kernels.gpu.triton_dense import cross

# The interpreter cuts bf16 off where a GPU rounds to nearest.
_ALLOWED = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 300), (2, 1024), (0, 4)])
def test_a_cross_is_that_of_torch(
    shape: tuple[int, int], narrow: torch.dtype, low: torch.dtype, keep: bool
) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    values, first, factor = (torch.randn(shape, generator=generator) for _ in range(3))
    factor = factor.to(narrow)
    whole, rounded = cross(values, first, factor, low, keep=keep)
    expected = torch.addcmul(values.double(), first.double(), factor.double())
    if keep:
        assert whole is not None and whole.dtype is torch.float32
        # The interpreter rounds the product too, which a GPU does not.
        torch.testing.assert_close(whole.double(), expected, rtol=2**-23, atol=2**-21)
    else:
        assert whole is None
    assert rounded.dtype is low and rounded.shape == values.shape
    torch.testing.assert_close(rounded.double(), expected, rtol=_ALLOWED[low], atol=2**-13)


def test_what_is_no_number_stays_none() -> None:
    odd = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]])
    whole, rounded = cross(odd, torch.ones(1, 4), torch.zeros(1, 4), torch.bfloat16, keep=True)
    assert whole is not None
    torch.testing.assert_close(whole, odd, equal_nan=True)
    torch.testing.assert_close(rounded.float(), odd, equal_nan=True)
