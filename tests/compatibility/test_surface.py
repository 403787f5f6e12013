"""Names that users of the last release rely on are still there, or were announced to go."""

import copy
import re

import pytest

from tests.compatibility.corpus import FOLDER, releases
from tests.compatibility.surface import (
    Listing,
    names_that_went,
    numbers_used_again,
    read_listing,
    surface,
)

# What went after it was not deprecated before: nobody could install it.
FIRST = "0.1.0"
LAST = releases()[-2]
PAGE = FOLDER.parents[1] / "docs" / "upgrading.md"


@pytest.fixture(scope="module")
def now() -> Listing:
    return surface()


def announced() -> set[str]:
    section = PAGE.read_text().partition("## Names that changed")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_listing_of_the_newest_release_is_what_the_code_says(now: Listing) -> None:
    # `make docs` writes it again.
    assert read_listing(releases()[-1]) == now


def test_every_section_of_every_listing_has_names(now: Listing) -> None:
    for listing in (now, *map(read_listing, releases())):
        empty = {section for section, names in listing.items() if not names}
        assert listing.keys() == now.keys() and empty <= {"deprecated"}


def test_a_name_that_went_was_deprecated_for_a_release_and_is_on_the_page(now: Listing) -> None:
    before = read_listing(LAST)
    went = names_that_went(before, now)
    assert sorted(went - announced()) == []
    known = before["deprecated"].keys() | now["deprecated"].keys()
    assert LAST == FIRST or sorted(went - known) == []


def test_deprecated_names_are_on_the_page(now: Listing) -> None:
    assert sorted(now["deprecated"].keys() - announced()) == []


def test_the_page_names_what_some_release_had() -> None:
    had = {name for r in releases() for names in read_listing(r).values() for name in names}
    named = {name for name in announced() if not name.startswith("SHARDED_INFER_")}
    assert sorted(named - had) == []


@pytest.mark.parametrize("release", releases())
def test_no_field_has_a_number_that_another_field_had(now: Listing, release: str) -> None:
    assert numbers_used_again(read_listing(release), now) == []


# The comparison itself.


def test_a_name_that_went_is_missed(now: Listing) -> None:
    assert names_that_went(now, now) == set()
    for section, name in (
        ("protos", "sharded_infer.v1.PredictRequest.model"),
        ("routes", "POST /v2/models/{model}/infer"),
        ("metrics", "sharded_infer_requests_total{code}"),
        ("settings", "executor=inline"),
        ("options", "serve --follow"),
        ("python", "sharded_infer.client.Client.predict"),
    ):
        later = copy.deepcopy(now)
        del later[section][name]
        assert names_that_went(now, later) == {name}


def test_a_field_of_another_type_or_number_is_missed(now: Listing) -> None:
    name = "sharded_infer.v1.PredictRequest.model"
    number, _, kind = now["protos"][name].partition(": ")
    for says in (f"{number}: repeated {kind}", f"9{number}: {kind}"):
        later = copy.deepcopy(now)
        later["protos"][name] = says
        assert names_that_went(now, later) == {name}


def test_a_number_that_another_field_had_is_found(now: Listing) -> None:
    name = "sharded_infer.v1.PredictRequest.model"
    later = copy.deepcopy(now)
    later["protos"][name + "_name"] = later["protos"].pop(name)
    assert numbers_used_again(now, later) == [f"{name}_name has the number of {name}"]
