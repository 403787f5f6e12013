"""A generator of rating logs, for trials without a real log."""

import numpy as np
from numpy.typing import NDArray

from serving.demo.sequences.ratings import RatingLog

_ITEMS = 600
_GENRES = 12
_ZIPF_EXPONENT = 0.8  # of the items' popularity
_EVENTS = 40  # of a user, in the median
_EVENTS_DEVIATION = 0.6  # of their logarithm
_INTEREST_SHARE = 0.85  # of events that follow the user's interest of the time
_SESSION_SHARE = 0.85  # of events that soon follow the one before
_SECONDS_WITHIN, _SECONDS_BETWEEN = 300.0, 5 * 86400.0
# A user's interest changes seldom within a session, and often between two.
_CHANGE_WITHIN, _CHANGE_BETWEEN = 0.02, 0.5
_FIRST_TIME, _START_SECONDS = 1_600_000_000, 250 * 86400.0


def generated_ratings(rows: int, seed: int) -> RatingLog:
    """Draw a log of `rows` synthetic ratings; the same `seed` draws the same log.

    Items belong to genres, and their popularity follows Zipf's law. A user rates in sessions, days
    apart. Most items are of the genre of the user's interest, which drifts, mostly between
    sessions, and they get better ratings. A user rates an item at most once.
    """
    generator = np.random.default_rng(seed)
    genres = generator.integers(0, _GENRES, _ITEMS)
    popularity = -_ZIPF_EXPONENT * np.log(generator.permutation(_ITEMS) + 1.0)
    users: list[NDArray[np.int64]] = []
    drawn = 0
    while drawn < rows:
        ratings = _user_ratings(genres, popularity, generator)
        user = np.full((1, ratings.shape[1]), len(users) + 1)
        users.append(np.concatenate([user, ratings]))
        drawn += ratings.shape[1]
    return RatingLog.ordered(np.concatenate(users, axis=1)[:, :rows])


def _user_ratings(
    genres: NDArray[np.int64], popularity: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Items, actions and times of one user, `[3, E]`, in order of time.

    `genres` are the items', `popularity` the logarithms of their weights.
    """
    events = 1 + int(generator.lognormal(np.log(_EVENTS), _EVENTS_DEVIATION))
    within = generator.random(events) < _SESSION_SHARE
    changes = generator.random(events) < np.where(within, _CHANGE_WITHIN, _CHANGE_BETWEEN)
    changes[0] = True
    interests = generator.integers(0, _GENRES, events)[
        np.maximum.accumulate(np.where(changes, np.arange(events), 0))
    ]
    follows = generator.random(events) < _INTEREST_SHARE
    wanted = np.where(follows, interests, generator.integers(0, _GENRES, events))
    # This sum orders items as draws by weight, without replacement (Gumbel's trick).
    order = np.argsort(-popularity - generator.gumbel(size=_ITEMS))
    items = np.full(events, -1)
    for genre in np.unique(wanted):
        places = np.flatnonzero(wanted == genre)
        drawn = order[genres[order] == genre][: places.size]
        items[places[: drawn.size]] = drawn
    seconds = generator.exponential(np.where(within, _SECONDS_WITHIN, _SECONDS_BETWEEN))
    times = _FIRST_TIME + generator.uniform(0, _START_SECONDS) + np.cumsum(seconds)
    stars = np.where(wanted == interests, 4.0, 3.0) + generator.normal(0, 0.7, events)
    halves = np.clip(np.rint(2 * stars), 1, 10).astype(np.int64)
    ratings = np.stack([items + 1, halves - 1, times.astype(np.int64)])
    # A user who has rated all items of a genre has no more.
    return ratings[:, items >= 0]
