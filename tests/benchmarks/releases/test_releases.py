"""`benchmarks releases`: the same load without and with a release."""

import json
from pathlib import Path

import pytest

from serving.bench.load.library import load_generator_refusal
from serving.bench.workloads.workload import WORKLOADS, Workload
from tests.support.servers import Command

needs_load = pytest.mark.skipif(
    load_generator_refusal() is not None, reason=str(load_generator_refusal())
)


@needs_load
def test_it_releases_under_load_and_no_request_fails(
    benchmark: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(WORKLOADS, "ragged", Workload("ragged", 5, 50, 4, 3, True, layers=(8,)))
    file = tmp_path / "releases.json"
    words = ("releases", "--workload", "ragged", "--rounds", 1, "--seconds", 4)
    done = benchmark(*words, "--share", 0.1, "--json", file)
    assert done.code == 0, done.err
    assert "p99 meanwhile" in done.out
    fields = json.loads(file.read_text())
    [one] = fields["rounds"]
    assert fields["failed_requests"] == one["failed"] == 0
    assert one["load_seconds"] > 0
    pooled = fields["pooled"]
    assert 0 <= pooled["left_out"] <= pooled["windows"] <= 1 + one["load_seconds"] // 0.25
    if pooled["requests"]:
        ratio = pooled["latency_ms"]["release"]["p99"] / pooled["latency_ms"]["quiet"]["p99"]
        assert fields["p99_ratio"] == pytest.approx(ratio)
    assert (
        0
        < fields["requests_per_second"]
        == pytest.approx(0.1 * fields["capacity_requests_per_second"])
    )


@needs_load
def test_deltas_are_measured_beside_a_whole_release(benchmark: Command, tmp_path: Path) -> None:
    file = tmp_path / "deltas.json"
    words = ("releases", "--delta", "--gigabytes", 0.001, "--changed", 0.1)
    done = benchmark(*words, "--rounds", 1, "--seconds", 25, "--share", 0.05, "--json", file)
    assert done.code == 0, done.err
    assert "from publish to served" in done.out
    fields = json.loads(file.read_text())
    assert fields["failed_requests"] == 0
    assert fields["changed_rows"] == fields["rows"] // 10
    # A small delta is mostly its golden requests and report.
    assert fields["bytes_over_changed"] > 1
    assert fields["written_bytes"][0] < fields["full_bytes"]
    assert 0 < fields["publish_to_served_seconds"] == fields["rounds"][0]["load_seconds"]
    assert fields["lookup_ratio"] > 0
    assert {*fields["rounds"][0]["stolen_seconds"]} == {"quiet", "elsewhere", "release"}
    assert fields["full_seconds"] > 0
