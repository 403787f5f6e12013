import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import time

import pytest

from serving.errors import PromotionError
from serving.remote.promotion.promoter import OnSilence, PromotionPlan, promote
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.repositories.promotion.record import Promotion
from sharded_infer.repositories.repository import Repository
from tests.support.counting_page import Behaviour, CountingPage, counting_page
from tests.support.publisher import Publisher
from tests.support.servers import Command, killed_at_end, start_command
from tests.support.waiting import until

PLAN = PromotionPlan(steps=(5, 50), watch_seconds=0.2)
BOUNDS = {
    "max_score_shift": 0.2,
    "max_error_rate": 0.01,
    "max_p99_ratio": 1.1,
    "max_unknown_ids": 0.05,
}


def filled(repository: Repository, publish_copy: Publisher) -> Repository:
    """`stable` is 1, `canary` is 2 and has bounds; version 3 has none."""
    for number in range(1, 4):
        release = BOUNDS if number == 2 else {}
        publish_copy(repository, {"notes.bin": bytes([number])}, release=release)
    repository.set_label("small", "stable", 1)
    repository.set_label("small", "canary", 2)
    return repository


@pytest.fixture
def labelled(tmp_path: Path, publish_copy: Publisher) -> Repository:
    return filled(Repository(tmp_path / "models"), publish_copy)


@pytest.fixture
def labelled_anywhere(stored: Repository, publish_copy: Publisher) -> Repository:
    return filled(stored, publish_copy)


@pytest.fixture
def page() -> Iterator[CountingPage]:
    with counting_page("small", {1: Behaviour(), 2: Behaviour()}) as page:
        yield page


def test_a_good_version_is_promoted_step_by_step(labelled: Repository, page: CountingPage) -> None:
    seen = []

    def told(promotion: Promotion, comparison: object) -> None:
        if comparison is None:
            seen.append((promotion.share, dict(labelled.label_history("small").weights)))

    assert promote(labelled, "small", [page.url], PLAN, told=told) == 2
    assert seen == [(5, {"canary": 5, "stable": 95}), (50, {"canary": 50, "stable": 50})]
    labels = labelled.label_history("small")
    assert labels.versions == {"stable": 2, "canary": 2} and labels.history["stable"] == (1,)
    assert (labels.weights, labels.promotion, labels.ended) == ({}, None, {})


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        (Behaviour(failed=40), "10.00% of 400 requests fail, 0.00% of stable's"),
        (Behaviour(seconds=0.008), "p99 .* x stable's, 1.1 allowed"),
        (Behaviour(score=0.7), "the mean of score is shifted by"),
        (Behaviour(unknown_ids=3), "30.00% of the ids are unknown"),
    ],
)
def test_a_version_that_is_worse_is_taken_back_and_the_reason_kept(
    labelled: Repository, page: CountingPage, worse: Behaviour, words: str
) -> None:
    page.behaviours[2] = worse
    plan = replace(PLAN, watch_seconds=60.0)
    with pytest.raises(PromotionError, match=f"taken back from 5%: {words}") as raised:
        promote(labelled, "small", [page.url], plan)
    labels = labelled.label_history("small")
    assert (labels.versions["stable"], labels.weights) == (1, {"stable": 100})
    assert labels.promotion is None
    [one] = labels.ended["canary"]
    assert one.version == 2 and one.reason in str(raised.value) and abs(time() - one.at) < 60


@pytest.mark.parametrize(
    ("on_silence", "weights"),
    [(OnSilence.ROLLBACK, {"stable": 100}), (OnSilence.KEEP, {"canary": 5, "stable": 95})],
)
def test_a_version_that_gets_no_requests_is_not_promoted(
    labelled: Repository, page: CountingPage, on_silence: OnSilence, weights: dict[str, int]
) -> None:
    del page.behaviours[2]
    plan = replace(PLAN, on_silence=on_silence)
    with pytest.raises(PromotionError, match="stopped at 5%: 0 answered requests of canary"):
        promote(labelled, "small", [page.url], plan)
    labels = labelled.label_history("small")
    assert (labels.weights, labels.promotion, len(labels.ended["canary"])) == (weights, None, 1)


def test_counts_from_before_a_step_or_a_servers_start_do_not_matter(
    labelled: Repository, page: CountingPage
) -> None:
    page.behaviours[2] = Behaviour(failed=400)
    page.read()
    page.behaviours[2] = Behaviour()

    def told(promotion: Promotion, comparison: object) -> None:
        if comparison is None:
            page.totals.clear()

    assert promote(labelled, "small", [page.url], PLAN) == 2
    labelled.set_label("small", "stable", 1)
    assert promote(labelled, "small", [page.url], PLAN, told=told) == 2


def test_of_several_promoters_one_begins(labelled_anywhere: Repository, page: CountingPage) -> None:
    barrier = threading.Barrier(4)

    def run(_: int) -> str:
        barrier.wait()
        try:
            promote(Repository(labelled_anywhere.location), "small", [page.url], PLAN)
        except InputError as error:
            return str(error)
        return "promoted"

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(run, range(4)))
    assert said.count("promoted") == 1
    others = [one for one in said if one != "promoted"]
    assert all("is promoted by" in one or "both mean version 2" in one for one in others), said


def test_who_moves_a_label_or_sets_weights_ends_the_promotion(
    labelled: Repository, page: CountingPage
) -> None:
    def told(promotion: Promotion, comparison: object) -> None:
        if comparison is None:
            labelled.set_weights("small", {"stable": 100})

    with pytest.raises(PromotionError, match="somebody moved a label or set weights"):
        promote(labelled, "small", [page.url], PLAN, told=told)
    labels = labelled.label_history("small")
    assert (labels.weights, labels.ended) == ({"stable": 100}, {})


def test_a_promoter_that_was_away_for_too_long_leaves_the_promotion_to_another(
    labelled: Repository, page: CountingPage
) -> None:
    plan = replace(PLAN, lease_seconds=0.2)

    def away(promotion: Promotion, comparison: object) -> None:
        if comparison is None and promotion.step == 0:
            until(lambda: promotion.has_expired(time()), "the lease is over")
            assert labelled.label_history("small").weights_at(time()) == {"stable": 100}
            assert promote(Repository(labelled.location), "small", [page.url], PLAN) == 2

    with pytest.raises(PromotionError, match="somebody moved a label"):
        promote(labelled, "small", [page.url], plan, told=away)
    assert labelled.labels("small")["stable"] == 2


def test_a_killed_promotion_is_resumed_at_its_step(
    labelled_anywhere: Repository,
    page: CountingPage,
    sharded_infer: Command,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    words = ("repo", "promote", labelled_anywhere.location, "small", "--server", page.url)
    log = tmp_path_factory.mktemp("promoter") / "log"
    with log.open("w") as errors:
        watched = ("--steps", "1,5,50", "--watch", "1.5s", "--lease", "1s")
        with killed_at_end(start_command(*words, *watched, stderr=errors)):
            history = labelled_anywhere.label_history
            until(lambda: (p := history("small").promotion) and p.step == 1, "the second step")
    left = labelled_anywhere.label_history("small").promotion
    assert left is not None and left.step >= 1
    until(lambda: left.has_expired(time()), "the lease is over")
    shown = sharded_infer("repo", "show", labelled_anywhere.location, "small").out
    assert "has said nothing since" in shown and "canary version 2 is promoted to stable" in shown
    said = sharded_infer(*words, "--resume", "--json")
    first, *_, last = said.out.splitlines()
    assert said.code == 0 and '"promoted": 2' in last
    assert f'"step": {left.step}' in first and left.by not in first
    assert labelled_anywhere.labels("small") == {"canary": 2, "stable": 2}


def test_what_cannot_be_promoted_is_refused_before_anything_changes(
    labelled: Repository, page: CountingPage
) -> None:
    before = labelled.label_history("small")
    urls = [page.url]
    with pytest.raises(NotFoundError, match="no label 'beta'"):
        promote(labelled, "small", urls, replace(PLAN, source="beta"))
    of_steps = "steps: expected 1 to 32 ascending percents"
    steps: tuple[tuple[int, ...], ...] = ((), (5, 5), (0, 5), (5, 100), tuple(range(1, 40)))
    for words, servers, plan in (
        ("expected another label", urls, replace(PLAN, source="stable")),
        *((of_steps, urls, replace(PLAN, steps=percents)) for percents in steps),
        ("watch: expected more than 0 s", urls, replace(PLAN, watch_seconds=0)),
        ("expected the URL of one server or more", [], PLAN),
        ("expected the URL of its HTTP port", ["127.0.0.1:8000"], PLAN),
    ):
        with pytest.raises(InputError, match=words):
            promote(labelled, "small", servers, plan)
    with pytest.raises(InputError, match="no promotion to resume"):
        promote(labelled, "small", urls, PLAN, resume=True)
    page.broken = True
    with pytest.raises(InputError, match="metrics page http://127.0.0.1"):
        promote(labelled, "small", urls, PLAN)
    page.broken = False
    assert labelled.label_history("small") == before
    labelled.set_label("small", "next", 3)
    with pytest.raises(InputError, match=r"version 3: its spec has no bound .* in \[release\]"):
        promote(labelled, "small", urls, replace(PLAN, source="next"))
    labelled.set_weights("small", {"stable": 90, "next": 10})
    with pytest.raises(InputError, match="label 'next' has a weight; expected none but"):
        promote(labelled, "small", urls, PLAN)
    labelled.set_weights("small", {})
    labelled.set_label("small", "stable", 2)
    with pytest.raises(InputError, match="canary and stable both mean version 2"):
        promote(labelled, "small", urls, PLAN)


def test_the_command_says_how_it_went(
    labelled: Repository, page: CountingPage, sharded_infer: Command
) -> None:
    where = (labelled.location, "small", "canary", "stable", "--server", page.url)
    words = ("repo", "promote", *where)
    sharded_infer(*words, "--steps", "a").refused("--steps: expected percents such as 1,5,25,50")
    assert sharded_infer(*words, "--watch", "soon").code == 2
    page.behaviours[2] = Behaviour(failed=40)
    done = sharded_infer(*words, "--watch", "10m")
    assert done.code == 1
    assert "canary version 2 is promoted to stable (version 1): step 1 of 4, 1% for 0 s" in done.out
    assert "taken back from 1%: 10.00% of 400 requests fail" in done.err
    shown = sharded_infer("repo", "show", labelled.location, "small")
    assert "taken back from 1%: 10.00% of 400 requests fail" in shown.out
    fields = sharded_infer("repo", "show", labelled.location, "small", "--json").json()
    assert fields["promotion"] is None and fields["ended"]["canary"][0]["version"] == 2
    sharded_infer("repo", "label", labelled.location, "small", "--clear-weights")
    assert not labelled.label_history("small").ended
    page.behaviours[2] = Behaviour()
    done = sharded_infer(*words, "--watch", "0.2s", "--steps", "50")
    assert (done.code, done.out.splitlines()[-1]) == (0, "small: version 2 is promoted")
