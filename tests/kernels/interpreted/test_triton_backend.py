import pytest
import torch

from kernels import reference
from kernels.bags import Bags
from kernels.errors import InputError
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from tests.kernels.test_pooled_lookup import BATCHES, CASES, Case, fill, store


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
def test_the_backend_pools_and_writes_where_it_is_told(row_format: RowFormat) -> None:
    tables = store(CASES["sums and means"], row_format)
    bags = fill(tables, BATCHES["ragged"], weighted=True)
    lookup = PooledLookup(tables, backend="triton")
    assert lookup.backend == "triton"
    expected = reference.pooled_lookup(tables, bags)
    torch.testing.assert_close(lookup(bags), expected, rtol=1e-5, atol=1e-4)
    buffer = torch.zeros(4, tables.total_dim + 2)
    lookup(bags, ids_checked=True, out=buffer[:, 1:-1])
    torch.testing.assert_close(buffer[:, 1:-1], expected, rtol=1e-5, atol=1e-4)


def test_an_id_outside_its_table_is_refused_with_its_place() -> None:
    tables = store(Case([(7, 3)], [(0, False), (0, True)]), RowFormat.INT8)
    lengths = torch.tensor([[1, 0, 2], [2, 1, 1]])
    values = torch.arange(7)
    values[4], values[6] = 2**40, 7
    words = rf"feature 1, sample 0: id {2**40} is outside \[0, 7\)"
    with pytest.raises(InputError, match=words):
        PooledLookup(tables, backend="triton")(Bags(values, lengths))


def test_lengths_that_are_not_those_of_the_values_are_refused() -> None:
    tables = store(CASES["sums"], RowFormat.INT8)
    lengths = torch.tensor([[-1, 2], [3, 1]])
    with pytest.raises(InputError, match="lengths: expected non-negative ones that sum to 4 "):
        PooledLookup(tables, backend="triton")(Bags(torch.zeros(4).long(), lengths))
