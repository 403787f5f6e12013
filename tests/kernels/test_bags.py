import pytest
import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.errors import InputError

IDS = torch.tensor([4, 5, 6])
LENGTHS = torch.tensor([[1, 0], [2, 0]])


def test_offsets_begin_every_bag_and_end_the_last() -> None:
    assert Bags(IDS, LENGTHS).offsets().tolist() == [0, 1, 1, 3, 3]


@pytest.mark.parametrize(
    ("values", "lengths", "weights", "words"),
    [
        (IDS.int(), LENGTHS, None, r"values: expected int64 \[N\], got torch.int32 \[3\]"),
        (IDS[None], LENGTHS, None, r"values: expected int64 \[N\], got torch.int64 \[1, 3\]"),
        (IDS, LENGTHS.int(), None, r"lengths: expected int64 .* got torch.int32 \[2, 2\]"),
        (IDS, LENGTHS.view(-1), None, r"lengths: expected int64 .* got torch.int64 \[4\]"),
        (IDS, LENGTHS, torch.ones(2), r"weights: expected float32 \[3\], got torch.float32 \[2\]"),
        (IDS, LENGTHS, IDS.double(), r"weights: expected float32 \[3\], got torch.float64 \[3\]"),
    ],
)
def test_a_misfit_is_refused_by_name(
    values: Tensor, lengths: Tensor, weights: Tensor | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        Bags(values, lengths, weights)
