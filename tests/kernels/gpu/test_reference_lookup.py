"""Lookup in a device's tables, against the oracle of all lookups."""

import pytest
import torch

from kernels import reference
from kernels.gpu.device_tables import copy_to_device, in_place
from kernels.gpu.reference_lookup import ReferenceLookup
from kernels.row_format import RowFormat
from tests.support.lookup_cases import BATCHES, CASES, fill, store


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("alignment", [0, 16])
def test_it_pools_what_the_tables_hold(row_format: RowFormat, case: str, alignment: int) -> None:
    tables = store(CASES[case], row_format)
    placed = in_place(tables)
    if alignment:
        placed = copy_to_device(tables, torch.device("cpu"), alignment=alignment)
    for name in ("ragged", "all bags empty"):
        bags = fill(tables, BATCHES[name], weighted=name == "ragged")
        out = torch.full((bags.lengths.shape[1], tables.total_dim), torch.nan)
        ReferenceLookup(placed).pooled(
            bags.values.int(), bags.offsets().int(), out=out, weights=bags.weights
        )
        expected = reference.pooled_lookup(tables, bags)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
