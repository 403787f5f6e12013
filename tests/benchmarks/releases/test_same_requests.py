"""The same requests in several runs: what the hypervisor took counts in none of them."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.releases.same_requests import Run, SameRequests, StolenTime, pooled
from serving.bench.load.result import LoadResult

# One request each 10 ms, for a second.
DUE = np.arange(0.0, 1.0, 0.01)


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    return tmp_path / "stat"


def taken(counts: Path, ticks: dict[float, int]) -> StolenTime:
    """What was taken of cores 0 and 1 by a moment, in hundredths of a second."""
    stolen = StolenTime({0, 1}, counts)
    for moment in np.arange(100.0, 101.05, 0.05).tolist():
        total = sum(one for at, one in ticks.items() if at < moment)
        lines = [f"cpu 1 1 1 1 1 1 1 {9 * total} 0 0", f"cpu0 1 1 1 1 1 1 1 {total} 0 0"]
        counts.write_text("\n".join((*lines, "cpu1 1 1 1 1 1 1 1 3 0 0", "cpu2 1 1 1 1 1 1 1 9 0")))
        stolen.sample(moment)
    return stolen


def run(stolen: StolenTime, seconds: float, failed: int = 0) -> Run:
    codes = np.zeros(len(DUE), np.uint8)
    codes[:failed] = 14
    return Run(
        LoadResult(
            scheduled=DUE, sent=DUE, latency=np.full(len(DUE), seconds), lag=np.zeros(len(DUE)),
            codes=codes, message_index=np.zeros(len(DUE), np.int32),
            response_bytes=np.zeros(len(DUE), np.int32), began=100.0, seconds=1.0,
            window_seconds=1.0, ok_in_window=len(DUE), responses={}, errors={},
            connection_calls=np.zeros(1, np.int64), reconnects=np.zeros(1, np.int64), cpu_share=0.1,
        ),
        stolen,
    )  # fmt: skip


def test_a_machine_that_was_there_leaves_nothing_out(counts: Path) -> None:
    # One tick may be a part of 10 ms.
    runs = {
        "quiet": run(taken(counts, {100.3: 1}), 0.002),
        "release": run(taken(counts, {}), 0.003),
    }
    found = pooled([SameRequests(runs, 0.0, 1.0), SameRequests(runs, 0.5, 0.6)])
    assert (found.windows, found.left_out, found.requests) == (5, 0, 110)
    assert found.p99_ratio("release", "quiet") == pytest.approx(1.5, rel=0.01)


def test_windows_that_were_taken_from_one_run_are_left_out_in_all(counts: Path) -> None:
    stolen = taken(counts, {100.3: 2})
    assert stolen.between(100.25, 100.5) == pytest.approx(0.02)
    assert stolen.between(100.5, 101.0) == 0
    runs = {"quiet": run(taken(counts, {}), 0.002), "release": run(stolen, 0.002)}
    # The second window, and the third, in which requests may still wait.
    assert SameRequests(runs, 0.0, 1.0).whole_windows() == [(0.0, 0.25), (0.75, 1.0)]
    found = pooled([SameRequests(runs, 0.0, 1.0)])
    assert (found.windows, found.left_out, found.requests) == (4, 2, 50)


def test_requests_that_failed_have_no_latency(counts: Path) -> None:
    runs = {"quiet": run(taken(counts, {}), 0.002), "release": run(taken(counts, {}), 0.002, 7)}
    assert pooled([SameRequests(runs, 0.0, 1.0)]).requests == 93


def test_without_a_whole_window_nothing_is_said(counts: Path) -> None:
    stolen = taken(counts, {100.1: 5, 100.6: 5})
    runs = {"quiet": run(stolen, 0.002), "release": run(stolen, 0.002)}
    found = pooled([SameRequests(runs, 0.0, 1.0)])
    assert (found.windows, found.left_out, found.requests) == (4, 4, 0)
    assert found.p99_ratio("release", "quiet") is None


def test_the_kernel_counts_while_it_is_asked() -> None:
    with StolenTime({0}) as stolen:
        pass
    assert stolen.between(0.0, float("inf")) >= 0
