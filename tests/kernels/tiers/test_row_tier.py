import ctypes
import os
import threading
from pathlib import Path
from time import monotonic

import pytest
import torch

from kernels.abi.tiers import tier_queued
from kernels.backends.native import NativeBackend
from kernels.errors import InputError, RowReadError
from kernels.fused_tables import FusedTables
from kernels.machine import instruction_sets
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from kernels.tiers.row_tier import MOST_SECONDS, RowTier, TierPart
from kernels.tiers.started_rows import StartedRows
from tests.kernels.test_row_overlay import SEVERAL_LINES, overlaid
from tests.support.lookup_cases import BATCHES, CASES, fill, store

ROWS, ROW_BYTES = 20_000, 132


def tiered(tables: FusedTables, path: Path, *, hot: int, cached: int) -> FusedTables:
    """The same tables, with their rows in a file of the tables' memory."""
    path.write_bytes(tables.memory.numpy().tobytes())
    tiers: dict[int, RowTier] = {}
    for feature, (offset, dim) in enumerate(zip(tables.byte_offsets, tables.dims, strict=True)):
        if offset in tiers:
            continue
        rows = tables.own_rows(feature)
        tiers[offset] = RowTier(
            path,
            offset=offset,
            row_bytes=tables.row_format.row_bytes(dim),
            rows=rows,
            hot_rows=min(hot, rows),
            cached_rows=min(cached, rows - min(hot, rows)),
        )
        assert sum(tiers[offset].load()) == min(hot, rows) * tiers[offset].row_bytes
    return FusedTables(
        # What is not in tiers would show.
        torch.full_like(tables.memory, 255),
        *(tables.row_format, tables.byte_offsets, tables.rows, tables.dims, tables.means),
        overlays=tables.overlays,
        tiers=tuple(TierPart(tiers[offset]) for offset in tables.byte_offsets),
    )


@pytest.fixture(scope="module")
def stored() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (ROWS, ROW_BYTES), generator=generator, dtype=torch.uint8)


@pytest.fixture
def file(tmp_path: Path, stored: torch.Tensor) -> Path:
    path = tmp_path / "rows"
    path.write_bytes(b"head" + stored.numpy().tobytes())
    return path


def open_tier(path: Path, *, hot_rows: int = 0, cached_rows: int = 0) -> RowTier:
    tier = RowTier(
        path,
        offset=4,
        row_bytes=ROW_BYTES,
        rows=ROWS,
        hot_rows=hot_rows,
        cached_rows=cached_rows,
        name="users",
    )
    list(tier.load())
    return tier


def read(tier: RowTier, ids: torch.Tensor, seconds: float = MOST_SECONDS) -> torch.Tensor:
    """Copies of rows from any tier: uint8 `[N, row_bytes]`."""
    started = StartedRows([TierPart(tier)], (None,), ids, [len(ids)])
    try:
        started.wait(monotonic() + seconds)
        out = torch.empty(len(ids), tier.row_bytes, dtype=torch.uint8)
        for number, place in enumerate(started.places.tolist()):
            ctypes.memmove(out[number].data_ptr(), place, tier.row_bytes)
        return out
    finally:
        started.close()


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize(("hot", "cached"), [(0, 0), (2, 3), (10_000, 0)])
@pytest.mark.parametrize("case", [*CASES, "several lines"])
def test_rows_in_tiers_have_the_bits_of_rows_in_memory(
    tmp_path: Path, row_format: RowFormat, hot: int, cached: int, case: str
) -> None:
    whole = store(CASES.get(case, SEVERAL_LINES), row_format, first_byte=5)
    found = tiered(whole, tmp_path / "rows", hot=hot, cached=cached)
    for batch, weighted in (("ragged", True), ("long", False), ("all bags empty", False)):
        bags = fill(whole, BATCHES[batch], weighted=weighted)
        assert torch.equal(PooledLookup(found)(bags), NativeBackend(whole).pool(bags))


@pytest.mark.parametrize("new", [0, 3])
def test_changed_rows_stand_in_front_of_tiers(tmp_path: Path, new: int) -> None:
    whole = store(SEVERAL_LINES, RowFormat.INT8)
    changed = tiered(overlaid(whole, new=new), tmp_path / "rows", hot=100, cached=7)
    bags = fill(whole, BATCHES["long"], weighted=True)
    for instruction_set in instruction_sets():
        rows = PooledLookup(changed).start(bags)
        rows.wait(monotonic() + 10)
        kernel = NativeBackend(changed, instruction_set=instruction_set)
        expected = NativeBackend(whole, instruction_set=instruction_set).pool(bags)
        assert torch.equal(kernel.pool(bags, None, rows.places), expected)
        rows.close()


def test_a_part_of_a_tier_begins_at_its_first_row(file: Path, stored: torch.Tensor) -> None:
    tier = open_tier(file, hot_rows=500, cached_rows=50)
    part = TierPart(tier).part(400).part(60)
    ids = torch.tensor([0, 39, 40, 41, 300])
    rows = StartedRows([part], [None], ids, [len(ids)])
    rows.wait(monotonic() + 10)
    hot, places = int(rows.places[0]), rows.places.tolist()
    assert [place - hot for place in places[1:2]] == [39 * ROW_BYTES]
    rows.close()
    assert torch.equal(read(tier, ids + 460), stored[ids + 460])


def test_rows_are_read_once_and_then_held(file: Path, stored: torch.Tensor) -> None:
    tier = open_tier(file, hot_rows=1000, cached_rows=1000)
    ids = torch.tensor([0, 999, 5000, 5001, 5000, 15_000])
    assert torch.equal(read(tier, ids), stored[ids])
    first = tier.counts()
    assert (first.hot, first.cached, first.missed) == (2, 0, 4)
    # Rows 5,000 and 5,001 lie in one block, or in two beside each other.
    assert first.reads == sum(first.latencies) == 2
    assert first.used_slots == 3
    assert torch.equal(read(tier, ids), stored[ids])
    second = tier.counts()
    assert (second.hot, second.cached, second.missed) == (4, 4, 4)
    assert second.reads == 2
    assert second.hit_rate == 8 / 12


def test_a_scan_leaves_rows_that_are_asked_for_often(file: Path, stored: torch.Tensor) -> None:
    tier = open_tier(file, cached_rows=1000)
    often = torch.arange(0, 9000, 10)  # 900 rows
    for _ in range(6):
        read(tier, often)
    for first in range(9000, ROWS, 500):
        scanned = torch.arange(first, first + 500)
        assert torch.equal(read(tier, scanned), stored[scanned])
    before = tier.counts()
    read(tier, often)
    assert tier.counts().cached - before.cached >= 0.9 * len(often)


def test_a_cache_of_few_rows_serves_many_threads(file: Path, stored: torch.Tensor) -> None:
    tier = open_tier(file, hot_rows=50, cached_rows=40)
    wrong: list[str] = []

    def ask(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            ids = (torch.rand(300, generator=generator) ** 4 * ROWS).long()
            if not torch.equal(read(tier, ids), stored[ids]):
                wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    counts = tier.counts()
    assert counts.hot + counts.cached + counts.missed == 8 * 20 * 300
    assert counts.used_slots <= 40
    assert tier_queued() == 0


def test_a_file_that_has_become_shorter_is_an_error_until_it_is_whole_again(
    file: Path, stored: torch.Tensor
) -> None:
    tier = open_tier(file, hot_rows=100, cached_rows=100)
    whole = file.read_bytes()
    os.truncate(file, len(whole) // 2)
    kept, lost = torch.tensor([3, ROWS // 4]), torch.tensor([3, ROWS // 4, ROWS - 1])
    with pytest.raises(RowReadError, match=r"table 'users': .*row 19999 .*become shorter"):
        read(tier, lost)
    assert torch.equal(read(tier, kept), stored[kept])
    file.write_bytes(whole)
    assert torch.equal(read(tier, lost), stored[lost])
    assert tier.counts().failed_reads == 1


def test_hot_rows_that_are_not_there_are_refused(file: Path) -> None:
    os.truncate(file, 5000)
    with pytest.raises(RowReadError, match="table 'users'"):
        open_tier(file, hot_rows=100)


@pytest.mark.parametrize(("hot", "cached"), [(ROWS + 1, 0), (-1, 0), (10, ROWS), (10, -1)])
def test_more_rows_than_there_are_cannot_be_held(file: Path, hot: int, cached: int) -> None:
    with pytest.raises(InputError, match="hot and cached rows"):
        open_tier(file, hot_rows=hot, cached_rows=cached)
