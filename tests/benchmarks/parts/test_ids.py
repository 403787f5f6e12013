"""`benchmarks ids`, as users run it."""

import json
from pathlib import Path

from tests.benchmarks.forked import run_benchmark


def test_it_measures_known_and_unknown_ids_beside_the_peers(tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    done = run_benchmark("ids", "--entries", 20_000, "--seconds", 0.05, "--json", file)
    assert done.returncode == 0, done.stderr
    assert "20,000 ids" in done.stdout and "times what a known one takes" in done.stdout
    fields = json.loads(file.read_text())
    measured = fields["measurement"]
    assert fields["entries"] == 20_000
    assert fields["ids_per_second"] == measured["known"] > 0
    assert fields["unknown_over_known"] == measured["known"] / measured["unknown"]
    assert fields["gather_limit_fraction"] == measured["known"] / measured["gather"]
    for name in ("searchsorted", "torchrec", "torchrec_unknown"):
        assert measured[name] > 0
    assert measured["index_bytes"] == 64 * (1 + 5000 + 255)
