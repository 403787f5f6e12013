from collections import Counter
from itertools import combinations, product

import pytest

from tests import lanes
from tests.lanes import all_pairs

FILES = (*lanes.REST_FILES, *lanes.SLOW_FILES, *lanes.SOAK_FILES, *lanes.PAIRWISE_FILES)


def test_every_listed_file_exists(pytestconfig: pytest.Config) -> None:
    files = {*FILES, *lanes.REST_TESTS, *lanes.SLOW_TESTS, *lanes.LONGEST_FILES}
    assert [file for file in files if not (pytestconfig.rootpath / file).is_file()] == []


def test_no_file_is_listed_twice() -> None:
    assert [file for file, count in Counter(FILES).items() if count > 1] == []
    whole = {*lanes.REST_FILES, *lanes.SLOW_FILES, *lanes.SOAK_FILES}
    assert whole & {*lanes.REST_TESTS, *lanes.SLOW_TESTS} == set()


def test_every_listed_test_is_in_its_file(pytestconfig: pytest.Config) -> None:
    for file, functions in (*lanes.REST_TESTS.items(), *lanes.SLOW_TESTS.items()):
        text = (pytestconfig.rootpath / file).read_text()
        assert [name for name in functions if f"def {name}(" not in text] == []


def test_the_lists_are_in_order() -> None:
    for listed in (
        lanes.REST_FILES,
        lanes.REST_TESTS,
        lanes.SLOW_FILES,
        lanes.SLOW_TESTS,
        lanes.SOAK_FILES,
        lanes.PAIRWISE_FILES,
    ):
        assert list(listed) == sorted(listed)


@pytest.mark.parametrize("sizes", [(2, 2), (4, 3, 2), (3, 3, 3, 3), (11, 7, 6, 2), (1, 5, 2)])
def test_every_pair_of_values_is_chosen(sizes: tuple[int, ...]) -> None:
    cases = {
        str(values): [f"{value}" for value in values] for values in product(*map(range, sizes))
    }
    chosen = all_pairs(cases)
    covered = {pair for name in chosen for pair in combinations(enumerate(cases[name]), 2)}
    assert covered == {
        pair for values in cases.values() for pair in combinations(enumerate(values), 2)
    }
    # No fewer are enough for the two longest parameters.
    longest, next_longest = sorted(sizes)[:-3:-1]
    assert longest * next_longest <= len(chosen) <= min(len(cases), 2 * longest * next_longest)


PRODUCT = """
import pytest

@pytest.mark.parametrize("format", ["int8", "int4", "fp16"])
@pytest.mark.parametrize("batch", [[1], [2, 3], []])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_product(format, batch, weighted): ...

@pytest.mark.parametrize("location", ["local", "s3"])
@pytest.mark.parametrize("backend", ["native", "fbgemm"])
def test_variant(location, backend): ...

def test_plain(): ...

@pytest.fixture
def s3_process(): ...

def test_a_store(s3_process): ...
"""


@pytest.fixture
def collected(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[pytest.Item]:
    """Tests of three files, one in each list, with their lanes."""
    for name in ("product", "whole", "long", "other"):
        pytester.makepyfile(**{f"test_{name}": PRODUCT})
    monkeypatch.setattr(lanes, "PAIRWISE_FILES", ("test_product.py",))
    monkeypatch.setattr(lanes, "REST_FILES", ("test_whole.py",))
    monkeypatch.setattr(lanes, "SOAK_FILES", ("test_long.py",))
    monkeypatch.setattr(lanes, "REST_TESTS", {"test_other.py": ("test_plain",)})
    # At its end faulthandler would remove the handler of SIGBUS that lookups have installed.
    items, _ = pytester.inline_genitems("-p", "no:randomly", "-p", "no:faulthandler")
    lanes.assign_lanes(items, pytester.path)
    return items


def names(items: list[pytest.Item], file: str, marker: str) -> set[str]:
    return {
        item.name for item in items if item.path.stem == file and item.get_closest_marker(marker)
    }


def test_a_listed_file_is_in_its_lane_whole(collected: list[pytest.Item]) -> None:
    everything = {item.name for item in collected}
    assert len(everything) == 24
    assert names(collected, "test_whole", "rest") == everything
    assert names(collected, "test_long", "slow") == everything
    assert names(collected, "test_long", "soak") == everything
    assert names(collected, "test_whole", "soak") == set()


def test_one_kind_of_what_holds_for_several_is_fast(collected: list[pytest.Item]) -> None:
    # A parameter that is not listed may have the same values.
    expected = {"test_variant[native-s3]", "test_variant[fbgemm-s3]", "test_a_store"}
    assert names(collected, "test_product", "rest") == expected
    assert names(collected, "test_other", "rest") == {*expected, "test_plain"}


def test_a_product_is_slow_but_for_its_pairs(collected: list[pytest.Item]) -> None:
    slow = {name for name in names(collected, "test_product", "slow") if "a_product" in name}
    assert len(slow) == 18 - 9


def test_a_fast_test_has_seconds_and_others_have_pytests_limit(
    collected: list[pytest.Item],
) -> None:
    for item in collected:
        limit = item.get_closest_marker("timeout")
        if not lanes.is_fast(item):
            continue
        assert limit is not None
        assert limit.args == (lanes.FAST_SECONDS,)
    assert names(collected, "test_whole", "timeout") == set()


def test_a_fast_test_that_takes_long_fails(collected: list[pytest.Item]) -> None:
    (fast,) = (i for i in collected if i.name == "test_plain" and i.path.stem == "test_product")
    (full,) = (i for i in collected if i.name == "test_plain" and i.path.stem == "test_other")
    for item in (fast, full):
        lanes.check_processor_time(item, lanes.FAST_PROCESSOR_SECONDS)
    lanes.check_processor_time(full, 100.0)
    with pytest.raises(
        pytest.fail.Exception, match=r"took 100\.0 s of processor time, expected at"
    ):
        lanes.check_processor_time(fast, 100.0)


def test_each_third_of_the_slow_lane_has_a_third_of_its_long_files() -> None:
    slow = [file for file in lanes.LONGEST_FILES if file in lanes.SLOW_FILES]
    counts = Counter(lanes.third_of(file) for file in slow)
    assert set(counts) == {0, 1, 2} and max(counts.values()) - min(counts.values()) <= 2
