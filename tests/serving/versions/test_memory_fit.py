from dataclasses import replace

import pytest

from serving.versions import memory_fit
from serving.versions.memory_fit import check_fits, choose_memory, held_bytes, needed_bytes
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.errors import CapacityError
from sharded_infer.towers.batch_sizes import KERNEL_BYTES
from tests.support.servers import Ranker

MIB = 2**20


def test_what_does_not_fit_is_refused_with_all_figures() -> None:
    check_fits(5 * MIB, 8 * MIB, 3 * MIB, "it")
    with pytest.raises(CapacityError, match=r"version 2 does not fit: it takes .* must stay"):
        check_fits(5 * MIB + 1, 8 * MIB, 3 * MIB, "ranker version 2")


@pytest.mark.parametrize("compiled", [False, True])
def test_copies_are_counted_for_each_process_and_mapped_tables_once(
    ranker: Ranker, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_fit, "are_compiled", lambda _: compiled)
    manifest = ranker.model.artifact.manifest
    files = {**manifest.files, manifest.tower.file: FileRecord(1000, "0" * 64)}
    manifest = replace(manifest, files=files)
    tables = manifest.table_bytes
    own = 1100 + (0 if compiled else KERNEL_BYTES)
    assert held_bytes(manifest, TableMemory.MAP, 1) == tables + own
    assert held_bytes(manifest, TableMemory.MAP, 4) == tables + 4 * own
    assert held_bytes(manifest, TableMemory.HUGE, 4) == 4 * (tables + own)
    shared = held_bytes(manifest, TableMemory.HUGE, 4, shares_copies=True)
    assert shared == tables + 4 * own
    # While it loads, each has the tower twice more.
    assert needed_bytes(manifest, TableMemory.MAP, 1) == tables + own + 2000
    assert needed_bytes(manifest, TableMemory.HUGE, 4) == 4 * (tables + own + 2000)
    needed = needed_bytes(manifest, TableMemory.HUGE, 4, shares_copies=True)
    assert needed == tables + 4 * (own + 2000)


def test_auto_copies_only_what_is_mapped_in_small_pages_and_takes_half_of_the_memory(
    ranker: Ranker,
) -> None:
    manifest = ranker.model.artifact.manifest
    large = 10 * HUGE_PAGE_BYTES + 5
    sizes = {name: FileRecord(large, "0" * 64) for name in manifest.table_files}
    manifest = replace(manifest, files={**manifest.files, **sizes})
    whole = 10 * HUGE_PAGE_BYTES * len(sizes)

    def chosen(huge_page_bytes: int, available: int) -> TableMemory:
        return choose_memory(
            manifest, huge_page_bytes=huge_page_bytes, copy_needs=500, available=available
        )

    assert chosen(whole, 1000) is TableMemory.AUTO
    assert chosen(whole // 2, 1000) is TableMemory.HUGE
    assert chosen(whole // 2, 999) is TableMemory.AUTO
