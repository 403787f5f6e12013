"""Logs of ratings, in the formats of MovieLens or generated.

A line of `ratings.dat` is `user::item::rating::timestamp`. `ratings.csv` begins with a line of
names and separates by commas. Users and items are whole numbers, a rating is 0.5 to 5 in halves,
and a timestamp counts seconds since 1970. The data sets are those of Harper and Konstan 2015, "The
MovieLens Datasets: History and Context", ACM TiiS 5(4).
"""

import re
from array import array
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import open_regular

_CSV_NAMES = b"userId,movieId,rating,timestamp"
RATINGS = 10  # 0.5 to 5, in halves

# 18 digits always fit an int64.
_NUMBER = rb"([0-9]{1,18})"
_RATING = rb"(0\.5|[1-4](?:\.[05])?|5(?:\.0)?)"
_LINES = {
    between: re.compile(between.join((_NUMBER, _NUMBER, _RATING, _NUMBER)))
    for between in (b"::", b",")
}
# More than four fields can have: longer lines do not fit the format.
_MOST_LINE_BYTES = 256


@dataclass(frozen=True, slots=True)
class RatingLog:
    """E ratings by user, second and line, arrays `[E]`; actions 0 to 9 are ratings 0.5 to 5."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    actions: NDArray[np.int64]
    times: NDArray[np.int64]

    @classmethod
    def ordered(cls, ratings: NDArray[np.int64]) -> Self:
        """A log of users, items, actions and times in any order, `[4, E]`."""
        users, _, _, times = ratings
        return cls(*ratings[:, np.lexsort((times, users))])


def read_ratings(path: Path, limit: int) -> RatingLog:
    """Read the first `limit` ratings of a file; InputError with file, line and expected format."""
    numbers = array("q")
    try:
        with open_regular(path, follow=True) as file:
            lines = iter(partial(file.readline, _MOST_LINE_BYTES), b"")
            pattern = None
            for number, line in enumerate(lines, start=1):
                text = line.rstrip(b"\r\n")
                if pattern is None:
                    pattern = _LINES[b"::" if b"::" in text else b","]
                    if text == _CSV_NAMES:
                        continue
                match = pattern.fullmatch(text)
                if match is None:
                    raise _line_error(path, number, text)
                user, item, rating, time = match.groups()
                numbers.extend((int(user), int(item), round(2 * float(rating)) - 1, int(time)))
                if len(numbers) == 4 * limit:
                    break
    except OSError as error:
        raise InputError(f"cannot read ratings {path}: {error.strerror}") from error
    if not numbers:
        raise InputError(f"{path} has no ratings, expected at least one")
    return RatingLog.ordered(np.array(numbers, np.int64).reshape(-1, 4).T)


def _line_error(path: Path, number: int, text: bytes) -> InputError:
    # Without its b prefix: a line need not be text.
    got = repr(text[:80])[1:]
    return InputError(
        f"{path}, line {number}: expected user::item::rating::timestamp, or the same between "
        f"commas: whole numbers, and a rating of 0.5 to 5 in halves; got {got}"
    )


# Of logs that are generated.
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
