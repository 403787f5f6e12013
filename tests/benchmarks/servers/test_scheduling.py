"""`benchmarks executors scheduler`, as users run it."""

import json
from pathlib import Path

from tests.benchmarks.forked import run_benchmark


def test_it_measures_both_schedulers_by_how_much_waits(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    words = ("executors", "scheduler", "--rounds", 1, "--json", file)
    done = run_benchmark(*words, "--concurrency", 1, "--concurrency", 40)
    assert done.returncode == 0, done.stderr
    assert "microseconds of processor time a request" in done.stdout
    costs = json.loads(file.read_text())
    assert [(one["scheduler"], one["waiting"]) for one in costs] == [
        ("reference", 1),
        ("compiled", 1),
        ("reference", 40),
        ("compiled", 40),
    ]
    for one in costs:
        assert min(one["alike"], one["different"], one["dispatcher"]) > 0.0
