"""`bench releases`: the same load without and with a release."""

import json
from pathlib import Path

import pytest

from serving.bench.load_library import load_generator_refusal
from tests.serving.conftest import run

needs_load = pytest.mark.skipif(
    load_generator_refusal() is not None, reason=str(load_generator_refusal())
)


@needs_load
def test_it_releases_under_load_and_no_request_fails(tmp_path: Path) -> None:
    file = tmp_path / "releases.json"
    words = ("bench", "releases", "--workload", "ragged", "--rounds", 1, "--seconds", 6)
    done = run(*words, "--share", 0.1, "--json", file)
    assert done.returncode == 0, done.stderr
    assert "median of the p99's ratio" in done.stdout
    fields = json.loads(file.read_text())
    [one] = fields["rounds"]
    assert fields["failed_requests"] == one["failed"] == 0
    assert 0 < one["load_seconds"] < 6
    ratio = one["release_ms"]["p99"] / one["quiet_ms"]["p99"]
    assert fields["p99_ratio"] == pytest.approx(ratio)
    assert (
        0
        < fields["requests_per_second"]
        == pytest.approx(0.1 * fields["capacity_requests_per_second"])
    )
