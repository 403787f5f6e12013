"""Logs of ratings, in the formats of MovieLens.

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
    """E ratings, grouped by user and in order of seconds, then of the file; arrays are `[E]`.

    Actions are numbers of ratings: 0 for 0.5 to 9 for 5.
    """

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
    """Read the first `limit` ratings of a file.

    Raises InputError, with file and line, if the file cannot be read or has no ratings, or a line
    has another format.
    """
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
