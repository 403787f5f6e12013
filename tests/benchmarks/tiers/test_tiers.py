"""`benchmarks tiers`: a table larger than its memory, of which order and tiers make more."""

import shutil
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Measure
from tests.support.servers import Command


def test_the_command_finds_more_rows_in_tiers(measure: Measure, tmp_path: Path) -> None:
    sizes = ("--gigabytes", 0.02, "--memory", 0.005, "--exponent", 1.05, "--seconds", 0.1)
    out, fields = measure("tiers", *sizes, "--rocksdb", "--folder", tmp_path)
    assert "0.02 GiB in 0.005 GiB of memory" in out
    [one] = fields["rates"]
    for way in ("ordered", "tiers"):
        assert one["mapped"]["hit_rate"] < one[way]["hit_rate"]
    assert one["ideal_hit_rate"] == pytest.approx(one["hit_rate"], abs=0.02)
    assert one["planned_hit_rate"] == pytest.approx(one["hit_rate"], abs=0.03)
    assert one["ordered"]["planned_hit_rate"] == pytest.approx(one["ordered"]["hit_rate"], abs=0.1)
    assert one["over_mapped"] > 0
    assert one["rocksdb"]["rows_per_second"] > 0
    assert (one["of_fio"] is None) == (shutil.which("fio") is None)
    # The table was removed.
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("sharded")] == []


def test_memory_without_room_for_a_row_is_refused(benchmark: Command) -> None:
    benchmark("tiers", "--gigabytes", 1, "--memory", 0.005).refused(
        "--memory: expected more than the places of 8,134,407 rows take, 0.00568 GiB, got 0.005"
    )
