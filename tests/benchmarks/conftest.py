"""`python -m benchmarks`, as users run it."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from serving.bench.load.library import load_generator_refusal
from serving.bench.workloads.named import WORKLOADS
from serving.bench.workloads.workload import Workload, equal_tables
from tests.support.servers import Command, run

# Runs a benchmark to its end; returns what it printed, and its figures.
Measure = Callable[..., tuple[str, Any]]
_PROGRAM = "from benchmarks.__main__ import main\nmain()\n"


@pytest.fixture
def benchmark(sharded_infer: Command) -> Command:
    return partial(sharded_infer, main=main)


@pytest.fixture
def measure(benchmark: Command, tmp_path: Path) -> Measure:
    """In the test's process."""

    def measured(*words: object) -> tuple[str, Any]:
        file = tmp_path / "figures.json"
        done = benchmark(*words, "--json", file)
        assert done.code == 0, done.err
        return done.out, json.loads(file.read_text())

    return measured


@pytest.fixture
def measure_apart(tmp_path: Path) -> Measure:
    """In a process of its own."""

    def measured(*words: object, seconds: float = 120.0) -> tuple[str, Any]:
        file = tmp_path / "figures.json"
        done = run(*words, "--json", file, seconds=seconds, program=_PROGRAM)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads(file.read_text())

    return measured


@pytest.fixture
def load_generator() -> None:
    """Skips the test where there is none."""
    if (refusal := load_generator_refusal()) is not None:
        pytest.skip(refusal)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Workload:
    """A small model in place of the workload `ragged`."""
    model = equal_tables("ragged", 6, 500, 16, 3, layers=(8,), ragged=True)
    monkeypatch.setitem(WORKLOADS, "ragged", model)
    return model
