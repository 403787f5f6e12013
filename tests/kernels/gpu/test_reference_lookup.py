"""Lookup in a device's tables, against the oracle of all lookups."""

from dataclasses import replace

import pytest
import torch

from kernels import reference
from kernels.errors import InputError
from kernels.gpu.device_tables import OutOfRange, copy_to_device, in_place
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


def test_several_features_may_pool_the_same_bags_into_columns_of_their_own() -> None:
    tables = store(CASES["shared tables out of order"], RowFormat.INT8)
    count = len(tables.dims)
    one_bags = fill(replace(tables, rows=(min(tables.rows),) * count), BATCHES["ragged"])
    length = int(one_bags.lengths[0].sum())
    values, offsets = one_bags.values[:length], one_bags.offsets()[: one_bags.lengths.shape[1] + 1]
    columns = tuple(sum(tables.dims) + 3 * f + sum(tables.dims[:f]) for f in range(count))
    shared = replace(in_place(tables), positions=(0,) * count, columns=columns)
    out = torch.full((len(offsets) - 1, shared.total_dim), torch.nan)
    ReferenceLookup(shared).pooled(values, offsets, out=out)
    for feature, column in enumerate(columns):
        alone = replace(
            tables,
            byte_offsets=tables.byte_offsets[feature : feature + 1],
            rows=tables.rows[feature : feature + 1],
            dims=tables.dims[feature : feature + 1],
            means=tables.means[feature : feature + 1],
        )
        bags = replace(one_bags, values=values, lengths=one_bags.lengths[:1])
        expected = reference.pooled_lookup(alone, bags)
        found = out[:, column : column + tables.dims[feature]]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert int(out.isnan().sum()) == len(out) * (shared.total_dim - sum(tables.dims))


def test_ids_are_to_be_wrapped_before() -> None:
    tables = in_place(store(CASES["sums"], RowFormat.INT8))
    with pytest.raises(InputError, match="wrapped before"):
        ReferenceLookup(replace(tables, policies=(OutOfRange.WRAP,) * len(tables.dims)))
