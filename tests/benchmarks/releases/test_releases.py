"""`benchmarks releases`: the same load without and with a release."""

import pytest

from tests.benchmarks.conftest import Measure

pytestmark = pytest.mark.usefixtures("load_generator", "small")


def test_it_releases_under_load_and_no_request_fails(measure: Measure) -> None:
    words = ("releases", "--workload", "ragged", "--rounds", 1, "--seconds", 4)
    out, fields = measure(*words, "--share", 0.1)
    assert "p99 meanwhile" in out
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


def test_deltas_are_measured_beside_a_whole_release(measure: Measure) -> None:
    words = ("releases", "--delta", "--gigabytes", 0.001, "--changed", 0.1)
    out, fields = measure(*words, "--rounds", 1, "--seconds", 25, "--share", 0.05)
    assert "from publish to served" in out
    assert fields["failed_requests"] == 0
    assert fields["changed_rows"] == fields["rows"] // 10
    # A small delta is mostly its golden requests and report.
    assert fields["bytes_over_changed"] > 1
    assert fields["written_bytes"][0] < fields["full_bytes"]
    assert 0 < fields["publish_to_served_seconds"] == fields["rounds"][0]["load_seconds"]
    assert fields["lookup_ratio"] > 0
    assert {*fields["rounds"][0]["stolen_seconds"]} == {"quiet", "elsewhere", "release"}
    assert fields["full_seconds"] > 0
