"""`bench tiers`: a table larger than its memory, of which order makes more."""

import json
from pathlib import Path

import pytest

from tests.support.servers import Command


def test_the_command_finds_more_rows_in_ordered_files(
    sharded_infer: Command, tmp_path: Path
) -> None:
    file = tmp_path / "tiers.json"
    sizes = ("--gigabytes", 0.02, "--memory", 0.005, "--exponent", 1.05, "--seconds", 0.1)
    done = sharded_infer("bench", "tiers", *sizes, "--folder", tmp_path, "--json", file)
    assert "0.02 GiB in 0.005 GiB of memory" in done.out
    rates = json.loads(file.read_text())["rates"]
    assert [one["threads"] for one in rates] == [1, 16]
    for one in rates:
        assert one["mapped"]["hit_rate"] < one["hit_rate"] < one["ideal_hit_rate"]
        assert one["planned_hit_rate"] == pytest.approx(one["hit_rate"], abs=0.1)
        assert one["over_mapped"] > 0
    # The table was removed.
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("sharded")] == []


def test_memory_without_room_for_a_row_is_refused(sharded_infer: Command) -> None:
    sharded_infer("bench", "tiers", "--gigabytes", 0.1, "--memory", 0.002).refused(
        "--memory: expected more than the places of 813,440 rows take, 0.00303 GiB, got 0.002 GiB"
    )
