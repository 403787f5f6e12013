import re
from dataclasses import replace

import numpy as np
import pytest

from serving.metrics.families.model_families import SCORE_BOUNDARIES
from serving.metrics.families.request_families import LATENCY_BOUNDARIES
from serving.remote.promotion.comparison import Comparison
from serving.remote.promotion.decision import Act, NextAct, Unread, decide
from serving.remote.promotion.figures import VersionFigures, figures_of
from serving.remote.promotion.histogram import histogram_of
from sharded_infer import ReleaseSpec
from sharded_infer.repositories.promotion.record import Promotion

BEGAN = 1000.0
# Each step takes 100 s.
PROMOTION = Promotion("canary", "stable", 4, 3, (1, 5, 50), 1, BEGAN, 300.0, "host/1/a", 2000.0)
BOUNDS = ReleaseSpec(
    max_score_shift=0.2, max_error_rate=0.01, max_p99_ratio=1.1, max_unknown_ids=0.05
)
DURING, AT_END, AT_LIMIT = BEGAN + 10, BEGAN + 101, BEGAN + 401


def figures(
    requests: int,
    *,
    failed: int = 0,
    slow: int = 0,
    times: float = 1.0,
    shift: float = 0.0,
    unknown: float = 0.0,
    sampled: float | None = None,
    seed: int = 0,
) -> VersionFigures:
    """Requests of 2 to 4 ms, or `times` that, and slow ones of a second.

    Scores are shifted by standard deviations; a share of the ids is unknown.
    """
    answered = requests - failed
    generator = np.random.default_rng(seed)
    seconds = np.concatenate(
        [generator.uniform(0.002, 0.004, answered - slow) * times, [1.0] * slow]
    )
    scores = generator.normal(0.5 + 0.1 * shift, 0.1, answered * 4)
    return VersionFigures(
        answered=answered,
        failed=failed,
        seconds=histogram_of(series(seconds, LATENCY_BOUNDARIES), least=0.0),
        scores={"score": histogram_of(series(scores, SCORE_BOUNDARIES))} if answered else {},
        sampled=answered / 16 if sampled is None else sampled,
        ids=answered * 100,
        unknown_ids=answered * 100 * unknown,
    )


def series(values: np.ndarray, boundaries: tuple[float, ...]) -> dict[str, float]:
    counts = {str(boundary): float((values <= boundary).sum()) for boundary in boundaries}
    return {**counts, "+Inf": float(len(values))}


STABLE = figures(20_000, failed=20, seed=1)


def decided(
    canary: VersionFigures,
    now: float = DURING,
    *,
    stable: VersionFigures = STABLE,
    bounds: ReleaseSpec = BOUNDS,
    unread: Unread = Unread(),  # noqa: B008 - frozen
    step: int = 1,
) -> NextAct:
    comparison = Comparison(canary, stable, "stable")
    return decide(replace(PROMOTION, step=step), comparison, bounds, now, unread)


@pytest.mark.parametrize(
    ("canary", "words"),
    [
        (figures(10, failed=10), "100.00% of 10 requests fail, 0.10% of stable's, 1.00% more"),
        (figures(1000, failed=40), "4.00% of 1000 requests fail"),
        (figures(1000, slow=50), "p99 .* x stable's, 1.1 allowed"),
        (figures(1000, times=1.4), "p99 1[.0-9]* x stable's, 1.1 allowed"),
        (
            figures(1000, shift=1.0),
            "the mean of score is shifted by .* standard deviations of stable's",
        ),
        (figures(500, unknown=0.2), "20.00% of the ids are unknown, 5.00% allowed"),
    ],
)
def test_a_version_that_is_worse_is_taken_back_at_once(canary: VersionFigures, words: str) -> None:
    following = decided(canary)
    assert following.act is Act.TAKE_BACK
    assert following.reason.startswith("taken back from 5%: ")
    assert re.search(words, following.reason), following.reason


@pytest.mark.parametrize(
    "canary",
    [
        figures(0),
        figures(1000),
        figures(1000, failed=1),
        figures(5, failed=5),
        figures(400, slow=8),
        figures(1000, times=1.05),
        figures(1000, shift=0.1),
        figures(100, shift=0.5),
        figures(1000, unknown=0.04),
    ],
)
def test_what_chance_explains_takes_nothing_back(canary: VersionFigures) -> None:
    assert decided(canary).act is Act.WAIT


@pytest.mark.parametrize(
    "canary",
    [
        figures(1000, failed=1000),
        figures(1000, slow=500),
        figures(1000, shift=9.0),
        figures(1000, unknown=0.9),
    ],
)
def test_without_its_bound_nothing_is_broken(canary: VersionFigures) -> None:
    comparison = Comparison(canary, STABLE, "stable")
    assert comparison.broken(ReleaseSpec()) == ""
    assert comparison.broken(BOUNDS) != ""


@pytest.mark.parametrize(("step", "act"), [(0, Act.ADVANCE), (1, Act.ADVANCE), (2, Act.FINISH)])
def test_a_good_version_goes_on_when_the_steps_time_is_over(step: int, act: Act) -> None:
    assert decided(figures(1000), step=step).act is Act.WAIT
    assert decided(figures(1000), AT_END, step=step).act is act


@pytest.mark.parametrize(
    ("canary", "stable", "words"),
    [
        (figures(299), STABLE, "299 answered requests of canary, expected at least 300 in 401 s"),
        (figures(1000), figures(3), "3 answered requests of stable"),
        (figures(1000, sampled=9.0), STABLE, "scores of 9 responses of canary"),
        (replace(figures(1000), scores={}), STABLE, "scores of 0 responses of canary"),
        (replace(figures(1000), seconds=histogram_of({})), STABLE, "no request times of canary"),
    ],
)
def test_a_step_waits_for_what_is_not_known_and_stops_in_the_end(
    canary: VersionFigures, stable: VersionFigures, words: str
) -> None:
    assert decided(canary, AT_END, stable=stable).act is Act.WAIT
    following = decided(canary, AT_LIMIT, stable=stable)
    assert following.act is Act.STOP and following.reason.startswith("stopped at 5%: ")
    assert words in following.reason


def test_only_what_a_bound_needs_is_waited_for() -> None:
    bounds = replace(BOUNDS, max_score_shift=None, max_p99_ratio=None)
    assert decided(figures(100, sampled=0.0), AT_END, bounds=bounds).act is Act.ADVANCE


def test_a_server_that_cannot_be_read_for_long_stops_the_promotion() -> None:
    assert decided(figures(1000), unread=Unread("http://a", 29)).act is Act.WAIT
    following = decided(figures(1000), unread=Unread("http://a", 31))
    assert following.act is Act.STOP
    assert following.reason == "stopped at 5%: http://a has not been readable for 31 s"


def test_cancelled_requests_are_no_errors_and_refused_ones_are() -> None:
    codes = {"OK": 5.0, "CANCELLED": 7.0, "INVALID_ARGUMENT": 2.0, "INTERNAL": 1.0}
    counted = figures_of(
        {("sharded_infer_requests_total", code): count for code, count in codes.items()}
    )
    assert (counted.answered, counted.failed) == (5, 3)
