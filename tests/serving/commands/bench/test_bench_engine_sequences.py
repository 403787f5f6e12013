import json
from pathlib import Path

import pytest

from tests.support.servers import run

TINY = ("--max-rows", 50, "--history", 9, "--candidates", 3, "--rounds", 1, "--seconds", 0.01)


@pytest.mark.parametrize("workload", ["din", "sasrec", "hstu-small"])
def test_the_figures_of_each_precision_are_written(workload: str, tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    command = ("bench", "engine", "--workload", workload, *TINY, "--json", target)
    ran = run(*command, "--precision", "fp32", "--precision", "bf16")
    assert ran.returncode == 0, ran.stderr
    assert "history with every candidate, bf16" in ran.stdout
    fields = json.loads(target.read_text())
    assert (fields["workload"], fields["history"], fields["candidates"]) == (workload, 9, 3)
    assert list(fields["towers"]) == ["fp32", "bf16"]
    for tower in fields["towers"].values():
        assert tower["over_per_candidate"] == tower["each_seconds"] / tower["once_seconds"]
        parts = tower["product_seconds"] + tower["copy_seconds"]
        assert tower["limit_fraction"] == parts / tower["once_seconds"]
        assert min(tower.values()) > 0
    assert fields | fields["towers"][fields["precision"]] == fields
