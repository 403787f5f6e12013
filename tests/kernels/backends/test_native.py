import pytest
import torch

from kernels.backends.native import NativeBackend, gather_rows
from kernels.bags import Bags
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.machine import InstructionSet, instruction_sets
from kernels.row_format import RowFormat
from quant.encoding.rowwise import encode

DIMS = (1, 5, 16, 33, 128, 200)
SAMPLES = 7


def tables_of(row_format: RowFormat) -> FusedTables:
    generator = torch.Generator().manual_seed(0)
    parts, offsets, end = [], [], 0
    for dim in DIMS:
        stored = encode(row_format, torch.randn(9, dim, generator=generator)).view(-1)
        parts.append(stored)
        offsets.append(end)
        end += len(stored)
    count = len(DIMS)
    means = tuple(index % 2 == 1 for index in range(count))
    return FusedTables(torch.cat(parts), row_format, tuple(offsets), (9,) * count, DIMS, means)


def bags() -> Bags:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 30, (len(DIMS), SAMPLES), generator=generator)
    values = torch.randint(0, 9, (int(lengths.sum()),), generator=generator)
    return Bags(values, lengths, torch.randn(len(values), generator=generator))


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_it_writes_where_it_is_told_and_nowhere_else(
    row_format: RowFormat, instruction_set: InstructionSet
) -> None:
    lookup = NativeBackend(tables_of(row_format), instruction_set=instruction_set)
    expected = lookup.pool(bags())
    width = sum(DIMS)
    around = torch.full((SAMPLES, width + 20), torch.nan)
    out = around[:, 7 : 7 + width]
    assert lookup.pool(bags(), out) is out
    assert torch.equal(out, expected)
    assert bool(around[:, :7].isnan().all()) and bool(around[:, 7 + width :].isnan().all())


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_bf16_output_is_the_fp32_output_rounded(
    row_format: RowFormat, instruction_set: InstructionSet
) -> None:
    lookup = NativeBackend(tables_of(row_format), instruction_set=instruction_set)
    out = torch.full((SAMPLES, sum(DIMS)), torch.nan, dtype=torch.bfloat16)
    assert torch.equal(lookup.pool(bags(), out), lookup.pool(bags()).to(torch.bfloat16))


def test_an_instruction_set_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    baseline = (InstructionSet.BASELINE,)
    monkeypatch.setattr("kernels.machine.instruction_sets", lambda: baseline)
    with pytest.raises(InputError, match="native: no avx2 here, only baseline"):
        NativeBackend(tables_of(RowFormat.INT8), instruction_set=InstructionSet.AVX2)


def test_a_bare_gather_reads_the_rows_it_is_asked_for() -> None:
    rows = torch.randint(0, 256, (50, 132), dtype=torch.uint8)
    ids = torch.randint(0, 50, (256,))
    assert torch.equal(gather_rows(rows, ids), rows[ids])
    with pytest.raises(InputError, match="ids: expected int64"):
        gather_rows(rows, ids.int())
