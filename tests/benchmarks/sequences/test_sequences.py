"""`benchmarks sequences`: short and long histories together, and frequent users with a cache."""

import json
from pathlib import Path

import pytest

from serving.bench.load.library import load_generator_refusal
from tests.support.servers import Command

pytestmark = pytest.mark.skipif(
    load_generator_refusal() is not None, reason=str(load_generator_refusal())
)
TINY = ("--rows", 50, "--candidates", 3, "--rounds", 1, "--seconds", 1, "--share", 0.1)


def test_short_histories_are_measured_with_long_ones_and_without(
    benchmark: Command, tmp_path: Path
) -> None:
    file = tmp_path / "lengths.json"
    words = ("sequences", "lengths", "--workload", "din", "--longest", 40, "--short", 20)
    done = benchmark(*words, *TINY, "--json", file)
    assert done.code == 0, done.err
    assert "median of the p99's ratio" in done.out
    fields = json.loads(file.read_text())
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
    done = benchmark("sequences", "lengths", "--short", 9, *TINY)
    assert done.code != 0
    assert "short histories: none of 10 to 1000 ids has at most 9" in done.err


def test_the_user_cache_is_measured_and_its_hits_have_the_same_bits(
    benchmark: Command, tmp_path: Path
) -> None:
    file = tmp_path / "users.json"
    words = ("sequences", "users", "--history", 9, "--users", 20)
    done = benchmark(*words, *TINY, "--json", file)
    assert done.code == 0, done.err
    assert "20 answers of hits equal those without, to the bit" in done.out
    fields = json.loads(file.read_text())
    # All users of the population are in the cache after the first requests, or soon after.
    assert 0.5 < fields["hit_rate"] <= 1
    saved = 1 - fields["cached"]["cpu_ms"] / fields["plain"]["cpu_ms"]
    assert fields["saved_share"] == pytest.approx(saved)
    assert fields["compared"] == 20
