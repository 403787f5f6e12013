"""A generator of rating logs in MovieLens's format, for trials without a real log."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.demo.sequences.ratings import CSV_NAMES
from sharded_infer.errors import InputError

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


def generate_ratings(path: Path, rows: int, seed: int) -> None:
    """Write a log of `rows` synthetic ratings, one user after another; a `seed` has one file.

    Items belong to genres, and their popularity follows Zipf's law. A user rates in sessions, days
    apart. Most items are of the genre of the user's interest, which drifts, mostly between
    sessions, and they get better ratings. A user rates an item at most once. Raises InputError if
    `rows` is below 1, or the file cannot be written.
    """
    if rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    generator = np.random.default_rng(seed)
    genres = generator.integers(0, _GENRES, _ITEMS)
    popularity = -_ZIPF_EXPONENT * np.log(generator.permutation(_ITEMS) + 1.0)
    try:
        with path.open("w", encoding="ascii", newline="\n") as output:
            output.write(CSV_NAMES.decode() + "\n")
            user = 0
            while rows:
                user += 1
                lines = _user_lines(user, genres, popularity, generator)[:rows]
                output.writelines(lines)
                rows -= len(lines)
    except OSError as error:
        raise InputError(f"cannot write ratings {path}: {error.strerror}") from error


def _user_lines(
    user: int,
    genres: NDArray[np.int64],
    popularity: NDArray[np.float64],
    generator: np.random.Generator,
) -> list[str]:
    """Lines of one user, in order of time, given the items' genres and logarithms of weights."""
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
    return [
        f"{user},{item + 1},{half / 2},{int(time)}\n"
        for item, half, time in zip(items.tolist(), halves.tolist(), times.tolist(), strict=True)
        # A user who has rated all items of a genre has no more.
        if item >= 0
    ]
