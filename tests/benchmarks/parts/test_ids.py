"""`benchmarks ids`, as users run it."""

from tests.benchmarks.conftest import Measure


def test_it_measures_known_and_unknown_ids_beside_the_peers(measure_apart: Measure) -> None:
    out, fields = measure_apart("ids", "--entries", 20_000, "--seconds", 0.05)
    assert "20,000 ids" in out and "times what a known one takes" in out
    measured = fields["measurement"]
    assert fields["entries"] == 20_000
    assert fields["ids_per_second"] == measured["known"] > 0
    assert fields["unknown_over_known"] == measured["known"] / measured["unknown"]
    assert fields["gather_limit_fraction"] == measured["known"] / measured["gather"]
    for name in ("searchsorted", "torchrec", "torchrec_unknown"):
        assert measured[name] > 0
    assert measured["index_bytes"] == 64 * (1 + 5000 + 255)
