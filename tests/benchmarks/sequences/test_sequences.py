"""`benchmarks sequences`: short and long histories together, and frequent users with a cache."""

import pytest

from tests.benchmarks.conftest import Measure
from tests.support.servers import Command

pytestmark = pytest.mark.usefixtures("load_generator")
TINY = ("--rows", 50, "--candidates", 3, "--rounds", 1, "--seconds", 1, "--share", 0.1)


def test_short_histories_are_measured_with_long_ones_and_without(measure: Measure) -> None:
    words = ("sequences", "lengths", "--workload", "din", "--longest", 40, "--short", 20)
    out, fields = measure(*words, *TINY)
    assert "median of the p99's ratio" in out
    [short], [mixed] = fields["short"], fields["mixed"]
    ratio = mixed["short_ms"]["p99"] / short["short_ms"]["p99"]
    assert fields["short_p99_over_short_only"] == pytest.approx(ratio)
    for one in (short, mixed):
        assert 0 < one["rate"] <= 0.1 * one["capacity"] * 1.001
        assert one["busy_share"] > 0
    assert short["short_ms"] == short["all_ms"]
    # 20 is the median of 10 to 40.
    assert fields["short_share"] == pytest.approx(0.5, abs=0.05)


def test_a_bound_below_all_histories_is_refused(benchmark: Command) -> None:
    benchmark("sequences", "lengths", "--short", 9, *TINY).refused(
        "short histories: none of 10 to 1000 ids has at most 9"
    )


def test_the_user_cache_is_measured_and_its_hits_have_the_same_bits(measure: Measure) -> None:
    out, fields = measure("sequences", "users", "--history", 9, "--users", 20, *TINY)
    assert "20 answers of hits equal those without, to the bit" in out
    # All users of the population are in the cache after the first requests, or soon after.
    assert 0.5 < fields["hit_rate"] <= 1
    saved = 1 - fields["cached"]["cpu_ms"] / fields["plain"]["cpu_ms"]
    assert fields["saved_share"] == pytest.approx(saved)
    assert fields["compared"] == 20


def test_growing_histories_are_measured_with_their_kept_positions(measure: Measure) -> None:
    words = ("--workload", "sasrec-forward", "--grow", "--history", 40, "--users", 8)
    _, fields = measure("sequences", "users", *words, *TINY)
    kept, loads = fields["hit_rates"], {"growing", "growing, full load", "new users"}
    assert kept.keys() == fields["cpu_ratios"].keys() == loads
    assert kept["new users"] == 0 < 0.5 < kept["growing"] < 1
    assert min(*fields["cpu_ratios"].values(), fields["p50_ratio_prepared"]) > 0
