"""The oracle against sums worked out by hand."""

import pytest
import torch

from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.row_format import RowFormat
from tests.reference.lookups import pooled_lookup

# Rows [1, 10], [2, 20], [4, 40]: exact in bf16.
ROWS = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
TABLES = FusedTables(
    memory=ROWS.to(torch.bfloat16).view(torch.uint8).view(-1),
    row_format=RowFormat.BF16,
    byte_offsets=(0, 0),
    rows=(3, 3),
    dims=(2, 2),
    means=(False, True),
)
# Both features: sample 0 has ids 0, 2, 2; sample 1 has none.
BAGS = Bags(torch.tensor([0, 2, 2, 0, 2, 2]), torch.tensor([[3, 0], [3, 0]]))


def test_bags_are_summed_or_averaged_and_empty_ones_are_zero() -> None:
    assert pooled_lookup(TABLES, BAGS).tolist() == [[9.0, 90.0, 3.0, 30.0], [0.0] * 4]


def test_a_weighted_mean_divides_by_the_number_of_ids() -> None:
    bags = Bags(BAGS.values, BAGS.lengths, torch.tensor([3.0, 0.0, 1.5, 3.0, 0.0, 1.5]))
    assert pooled_lookup(TABLES, bags)[0].tolist() == [9.0, 90.0, 3.0, 30.0]


def test_an_id_outside_is_refused() -> None:
    bags = Bags(torch.tensor([3]), torch.tensor([[0, 0], [0, 1]]))
    with pytest.raises(InputError, match=r"feature 1, sample 1: id 3 is outside \[0, 3\)"):
        pooled_lookup(TABLES, bags)
