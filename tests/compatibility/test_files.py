"""Samples, statistics, costs, labels and changes of every release give the values they gave."""

import pytest

from sharded_infer import Repository, load_spec, open_model
from sharded_infer.planning.topology_file import parse_topology
from tests.compatibility.changed_models import later_values
from tests.compatibility.corpus import Corpus, releases, stored
from tests.compatibility.plain_corpus import values_of

CORPORA = [stored(release) for release in releases()]
PLAIN = ("calibration", "statistics", "labels", "history")
LATER = ("changes", "weights", "promotions")


@pytest.fixture(params=CORPORA, ids=lambda corpus: corpus.release)
def corpus(request: pytest.FixtureRequest) -> Corpus:
    found: Corpus = request.param
    return found


@pytest.mark.parametrize("section", PLAIN)
def test_plain_files_have_the_values_that_their_release_read(corpus: Corpus, section: str) -> None:
    values = corpus.values()[section]
    assert values and values_of(corpus)[section] == values


@pytest.mark.parametrize("section", LATER)
@pytest.mark.parametrize("corpus", CORPORA[1:], ids=lambda corpus: corpus.release)
def test_later_files_have_the_values_that_their_release_read(corpus: Corpus, section: str) -> None:
    values = corpus.values()[section]
    assert values and later_values(corpus)[section] == values


def test_no_value_is_left_unread(corpus: Corpus) -> None:
    assert set(corpus.values()) <= {*PLAIN, *LATER}


def test_a_description_with_statistics_is_that_of_the_published_version(corpus: Corpus) -> None:
    spec = load_spec(corpus.files / "formats.toml")
    published = Repository(corpus.models).manifest("formats", 1).model_spec()
    assert spec.statistics == published.statistics and len(spec.statistics) == 8
    assert [(table.name, table.rows, table.dim) for table in spec.tables] == [
        (table.name, table.rows, table.dim) for table in published.tables
    ]
    for section in ("gate", "dense"):
        assert getattr(spec, section) == getattr(published, section)


@pytest.mark.parametrize("topology", ["two-hosts", "measured"])
def test_costs_are_those_that_the_release_planned_with(corpus: Corpus, topology: str) -> None:
    read = parse_topology(str(corpus.files / f"{topology}.toml"))
    assert read == open_model(corpus.path("formats", 1), topology=topology).plan.topology


@pytest.mark.parametrize("corpus", CORPORA[1:], ids=lambda corpus: corpus.release)
def test_costs_of_a_front_are_those_that_the_release_planned_with(corpus: Corpus) -> None:
    read = parse_topology(str(corpus.files / "front-and-hosts.toml"))
    plan = open_model(corpus.path("hosts", 1), topology="front-and-hosts").plan
    assert read == plan.topology and read.front is not None
