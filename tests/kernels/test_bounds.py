import pytest
import torch

from kernels.bags import Bags
from kernels.bounds import locate, out_of_range

ROWS = torch.tensor([3, 1, 5])
# Feature 0: [], [2]; feature 1: [], []; feature 2: [4, 0], [1].
LENGTHS = torch.tensor([[0, 1], [0, 0], [2, 1]])


def test_an_id_is_located_past_empty_bags() -> None:
    bags = Bags(torch.tensor([2, 4, 0, 1]), LENGTHS)
    assert [locate(bags, position) for position in range(4)] == [(0, 1), (2, 0), (2, 0), (2, 1)]


@pytest.mark.parametrize("lengths", [[[0, 1], [0, 0], [2, 2]], [[0, 1], [0, 0], [1, 1]]])
def test_lengths_that_do_not_sum_to_the_ids_are_read_by_nobody(lengths: list[list[int]]) -> None:
    with pytest.raises(RuntimeError):
        out_of_range(Bags(torch.tensor([2, 0, 0, 1]), torch.tensor(lengths)), ROWS)


def test_ids_outside_are_found_and_only_these() -> None:
    generator = torch.Generator().manual_seed(5)
    rows = torch.tensor([1, 7, 2**40, 3])
    for _ in range(200):
        lengths = torch.randint(0, 4, (4, 5), generator=generator)
        owners = torch.repeat_interleave(rows, lengths.sum(1))
        values = torch.randint(-1, 2**62, owners.shape, generator=generator) % (owners + 1)
        expected = values >= owners
        found = out_of_range(Bags(values, lengths), rows)
        if bool(expected.any()):
            assert found is not None and torch.equal(found, expected)
        else:
            assert found is None
