"""`benchmarks executors scheduler`, as users run it."""

import json
from pathlib import Path

from tests.benchmarks.forked import run_benchmark


def test_it_measures_the_scheduler_by_the_number_of_waiting_requests(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    words = ("executors", "scheduler", "--rounds", 1, "--json", file)
    done = run_benchmark(*words, "--concurrency", 1, "--concurrency", 40)
    assert done.returncode == 0, done.stderr
    assert "microseconds of processor time a request" in done.stdout
    costs = json.loads(file.read_text())
    assert [one["waiting"] for one in costs] == [1, 40]
    for one in costs:
        assert min(one["alike"], one["different"], one["dispatcher"]) > 0.0
