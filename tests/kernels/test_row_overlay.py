import numpy as np
import pytest
import torch

from kernels.backends.native import NativeBackend
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.machine import instruction_sets
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from kernels.row_overlay import OverlayLayer, RowOverlay
from tests.reference import lookups as reference
from tests.support.lookup_cases import BATCHES, CASES, Case, fill, store

SEVERAL_LINES = Case([(1300, 8), (513, 33), (64, 5)], [(0, False), (1, True), (2, False)])


def layers_of(rows: int, own_rows: int, row_bytes: int, whole: torch.Tensor) -> list[OverlayLayer]:
    """Three layers whose last words are those of `whole`; all rows behind the own ones."""
    generator = np.random.default_rng(rows)
    new = np.arange(own_rows, rows)
    found = []
    for number in range(3):
        chosen = generator.choice(own_rows, max(1, own_rows // (2 + number)), replace=False)
        ids = np.unique(np.concatenate([chosen, new if number == 1 else new[:0]]))
        found.append((ids, np.full((len(ids), row_bytes), 255, np.uint8)))
    final = {int(row): number for number, (ids, _) in enumerate(found) for row in ids}
    for number, (ids, stored) in enumerate(found):
        last = [at for at, row in enumerate(ids.tolist()) if final[row] == number]
        stored[last] = whole.numpy()[ids[last]]
    return [OverlayLayer(ids, torch.from_numpy(stored)) for ids, stored in found]


def overlaid(tables: FusedTables, *, new: int = 0) -> FusedTables:
    """The same rows, some of them in overlays, where the memory holds NaN."""
    memory, overlays = tables.memory.clone(), {}
    for offset, rows, dim in zip(tables.byte_offsets, tables.rows, tables.dims, strict=True):
        row_bytes, own_rows = tables.row_format.row_bytes(dim), max(1, rows - new)
        own = slice(offset, offset + rows * row_bytes)
        layers = layers_of(rows, own_rows, row_bytes, tables.memory[own].view(rows, row_bytes))
        table = memory[own].view(rows, row_bytes)
        for layer in layers:
            table[torch.from_numpy(layer.ids)] = 255
        overlays[offset] = RowOverlay.of(rows, own_rows, layers)
    return FusedTables(
        memory,
        *(tables.row_format, tables.byte_offsets, tables.rows, tables.dims, tables.means),
        overlays=tuple(overlays[offset] for offset in tables.byte_offsets),
    )


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("new", [0, 3])
@pytest.mark.parametrize("case", [*CASES, "several lines"])
def test_changed_rows_are_read_in_place_of_a_tables_own(
    row_format: RowFormat, new: int, case: str
) -> None:
    whole = store(CASES.get(case, SEVERAL_LINES), row_format)
    tables = overlaid(whole, new=new)
    for batch, weighted in (("ragged", True), ("long", False), ("all bags empty", False)):
        bags = fill(whole, BATCHES[batch], weighted=weighted)
        for instruction_set in instruction_sets():
            expected = NativeBackend(whole, instruction_set=instruction_set).pool(bags)
            found = NativeBackend(tables, instruction_set=instruction_set).pool(bags)
            assert torch.equal(found, expected)
    bags = fill(whole, BATCHES["ragged"], weighted=True)
    expected = reference.pooled_lookup(whole, bags)
    assert torch.equal(reference.pooled_lookup(tables, bags), expected)


def test_a_part_of_a_table_has_its_part_of_the_overlay() -> None:
    whole = store(Case([(1300, 8)], [(0, False)]), RowFormat.INT8)
    tables = overlaid(whole, new=100)
    [overlay] = tables.overlays
    assert overlay is not None
    first, rows = 700, 600
    offset = whole.byte_offsets[0] + first * RowFormat.INT8.row_bytes(8)

    def part(of: FusedTables, overlays: tuple[RowOverlay, ...]) -> FusedTables:
        return FusedTables(
            of.memory, RowFormat.INT8, (offset,), (rows,), (8,), (False,), overlays=overlays
        )

    bags = fill(part(whole, ()), [[300, 0, 200]])
    expected = PooledLookup(part(whole, ()))(bags)
    cut = part(tables, (overlay.part(first),))
    assert torch.equal(PooledLookup(cut)(bags), expected)
    torch.testing.assert_close(expected, reference.pooled_lookup(cut, bags))


def test_an_overlay_takes_one_bit_a_row_and_an_address_a_changed_one() -> None:
    rows = 1_000_000
    ids = np.arange(0, rows, 100)
    overlay = RowOverlay.of(rows, rows, [OverlayLayer(ids, torch.zeros(len(ids), 12).byte())])
    assert overlay.count == len(ids)
    assert overlay.index_bytes <= rows / 8 + rows / 64 + rows / 128 + 8 * len(ids) + 136


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([3, 3], 2, r"layer 0 of changed rows: expected ascending ids, got 3 after 3"),
        ([3, 2], 2, r"expected ascending ids, got 2 after 3"),
        ([-1, 2], 2, r"expected ids of 0 to 9, got -1"),
        ([1, 10], 2, r"expected ids of 0 to 9, got 10"),
        ([1, 2], 3, r"expected rows uint8 \[2, row_bytes\], got torch.uint8 \[3, 12\]"),
        ([], 0, r"expected ids int64 \[M\], got int64 \[0\]"),
    ],
)
def test_changed_rows_that_are_none_are_refused(ids: list[int], rows: int, message: str) -> None:
    layer = OverlayLayer(np.array(ids, np.int64), torch.zeros(rows, 12, dtype=torch.uint8))
    with pytest.raises(InputError, match=message):
        RowOverlay.of(10, 10, [layer])


@pytest.mark.parametrize(("ids", "missing"), [([8, 10], 9), ([2, 8, 9], 10), ([2], 8)])
def test_every_new_row_must_be_there(ids: list[int], missing: int) -> None:
    layer = OverlayLayer(np.array(ids), torch.zeros(len(ids), 12, dtype=torch.uint8))
    with pytest.raises(InputError, match=rf"row {missing} is new, behind 8, and is not there"):
        RowOverlay.of(11, 8, [layer])
