"""Criteo's display-advertising click log: its format, its vocabulary, and a generator of such logs.

A line has 40 tab-separated fields: a label (0 or 1), 13 integers and 26 categories of up to 8
hexadecimal digits. Integers and categories may be empty. The format is that of the Kaggle Display
Advertising Challenge data set (Criteo Labs, 2014).
"""

import re
from array import array
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import open_regular

DENSE_COUNT = 13
CATEGORY_COUNT = 26
FEATURES = tuple(f"C{number}" for number in range(1, CATEGORY_COUNT + 1))

_FIELD_COUNT = 1 + DENSE_COUNT + CATEGORY_COUNT
_DIGITS = 8  # of a category, at most
_LABEL = re.compile(rb"[01]")
# 18 digits always fit an int64.
_INTEGER = re.compile(rb"(?:-?[0-9]{1,18})?")
_CATEGORY = re.compile(rb"(?:[0-9a-fA-F]{1,8})?")
_LINE = re.compile(
    _LABEL.pattern
    + b"(?:\t" + _INTEGER.pattern + b"){%d}" % DENSE_COUNT
    + b"(?:\t" + _CATEGORY.pattern + b"){%d}" % CATEGORY_COUNT
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClickLog:
    """N lines of a click log, as written: labels `[N]`, dense `[N, 13]`, categories S8 `[N, 26]`.

    Labels are 1 for a click. Empty dense fields are 0 and not present.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.int64]
    dense_present: NDArray[np.bool_]
    categories: NDArray[np.bytes_]

    def slice(self, start: int, stop: int) -> Self:
        """Lines `start` to `stop` (exclusive), as a view."""
        lines = slice(start, stop)
        dense, present = self.dense[lines], self.dense_present[lines]
        return type(self)(self.labels[lines], dense, present, self.categories[lines])


@dataclass(frozen=True, slots=True)
class Examples:
    """N samples in the form of model inputs: dense `[N, 13]`, categories `[N, 26]`.

    Ids are 0 where no category is present. `rows` are the possible ids of each feature; `texts`,
    S8, the categories in the log, if they are kept.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    present: NDArray[np.bool_]
    rows: tuple[int, ...]
    texts: NDArray[np.bytes_] | None = None

    def __len__(self) -> int:
        return self.labels.size

    def select(self, positions: NDArray[np.int64] | slice) -> Self:
        """Samples at `positions`, in that order."""
        return replace(
            self,
            labels=self.labels[positions],
            dense=self.dense[positions],
            ids=self.ids[positions],
            present=self.present[positions],
            texts=None if self.texts is None else self.texts[positions],
        )


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Sorted categories of each feature, S8 `[rows - 1]`, with ids from 1; others have id 0."""

    kept: tuple[NDArray[np.bytes_], ...]

    @classmethod
    def fit(cls, log: ClickLog, *, min_count: int) -> Self:
        """Keep the values that `log` (the training part only) has at least `min_count` times."""
        kept = []
        for column in log.categories.T:
            values, counts = np.unique(column[column != b""], return_counts=True)
            kept.append(values[counts >= min_count])
        return cls(kept=tuple(kept))

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each feature's table, id 0 included."""
        return tuple(values.size + 1 for values in self.kept)

    def encode(self, log: ClickLog, *, keep_texts: bool = False) -> Examples:
        """Convert lines to samples, with their categories' texts on request.

        An integer x becomes `log(1 + max(x, 0))`, an empty one 0. A category becomes its id, or 0
        if not kept.
        """
        dense = np.log1p(np.maximum(log.dense, 0)) * log.dense_present
        present = log.categories != b""
        ids = np.zeros(present.shape, np.int64)
        for feature, kept in enumerate(self.kept):
            wanted = log.categories[:, feature]
            places = np.searchsorted(kept, wanted)
            # The appended b"" stands behind the last value and equals no category that is present.
            is_kept = present[:, feature] & (np.append(kept, b"")[places] == wanted)
            ids[is_kept, feature] = places[is_kept] + 1
        return Examples(
            labels=log.labels,
            dense=dense.astype(np.float32),
            ids=ids,
            present=present,
            rows=self.rows,
            texts=log.categories if keep_texts else None,
        )


# More than 40 fields can have: longer lines do not fit the format.
_MOST_LINE_BYTES = 4096


def read_clicks(path: Path, limit: int) -> ClickLog:
    """Read the first `limit` lines of a log; InputError with file, line, column and expectation."""
    labels = bytearray()
    # Typed arrays: a list would hold an object for each of the fields.
    numbers, present, categories = array("q"), bytearray(), bytearray()
    try:
        with open_regular(path, follow=True) as file:
            lines = iter(partial(file.readline, _MOST_LINE_BYTES), b"")
            for number, line in enumerate(lines, start=1):
                text = line.rstrip(b"\r\n")
                if _LINE.fullmatch(text) is None:
                    raise _line_error(path, number, text)
                fields = text.split(b"\t")
                labels.append(fields[0] == b"1")
                integers = fields[1 : 1 + DENSE_COUNT]
                numbers.extend([int(value or b"0") for value in integers])
                present.extend([value != b"" for value in integers])
                digits = fields[1 + DENSE_COUNT :]
                categories += b"".join([one.ljust(_DIGITS, b"\0") for one in digits])
                if number == limit:
                    break
    except OSError as error:
        raise InputError(f"cannot read click log {path}: {error.strerror}") from error
    if not labels:
        raise InputError(f"click log {path} is empty, expected at least one line")
    return ClickLog(
        labels=np.frombuffer(labels, np.uint8).astype(np.float32),
        dense=np.array(numbers, np.int64).reshape(-1, DENSE_COUNT),
        dense_present=np.array(present, np.bool_).reshape(-1, DENSE_COUNT),
        categories=np.frombuffer(categories, f"S{_DIGITS}").reshape(-1, CATEGORY_COUNT),
    )


def _line_error(path: Path, number: int, text: bytes) -> InputError:
    fields = text.split(b"\t")
    if len(fields) != _FIELD_COUNT:
        return InputError(
            f"{path}, line {number}: expected {_FIELD_COUNT} tab-separated fields, "
            f"got {len(fields)}"
        )
    rules = [(_LABEL, "a label, 0 or 1")]
    rules += [(_INTEGER, "an integer of at most 18 digits or nothing")] * DENSE_COUNT
    rules += [(_CATEGORY, "at most 8 hexadecimal digits or nothing")] * CATEGORY_COUNT
    column, expected = next(
        (column, expected)
        for column, (pattern, expected) in enumerate(rules, start=1)
        if pattern.fullmatch(fields[column - 1]) is None
    )
    # Without its b prefix: a field need not be text, and may be as long as the file.
    got = repr(fields[column - 1][:80])[1:]
    return InputError(f"{path}, line {number}, column {column}: expected {expected}, got {got}")


# Distinct values of each category: a few small counts, as in the real log, and long tails.
_CARDINALITIES = (
    1400, 550, 30000, 15000, 300, 20, 12000, 600, 3, 50000, 5000, 30000, 3000,
    26, 11000, 28000, 10, 4700, 2000, 4, 30000, 18, 15, 20000, 100, 15000,
)  # fmt: skip
# Every fourth field is often empty, the others rarely; the first never is.
_EMPTY_SHARES = (0.0, 0.02, 0.05, 0.4)
_ZIPF_EXPONENT = 1.1
_CATEGORY_WEIGHT = 0.4
_DENSE_WEIGHT = 0.2
_CLICK_SHARE = 0.25


def generated_clicks(rows: int, seed: int) -> ClickLog:
    """Draw a click log of `rows` synthetic lines; the same `seed` draws the same log.

    Categories follow Zipf's law, integers are rounded log-normals with a few -1, and some of both
    are empty. About a quarter of the lines are clicks, drawn from a logistic model over a hidden
    weight for each category and for the logarithm of each integer.
    """
    generator = np.random.default_rng(seed)
    log_odds = np.zeros(rows)
    categories = np.empty((rows, CATEGORY_COUNT), "S8")
    for column, cardinality in enumerate(_CARDINALITIES):
        numbers = generator.choice(2**32, size=cardinality, replace=False)
        names = np.array([f"{number:08x}" for number in numbers.tolist()], "S8")
        popularity = np.arange(1, cardinality + 1) ** -_ZIPF_EXPONENT
        drawn = generator.choice(cardinality, size=rows, p=popularity / popularity.sum())
        present = generator.random(rows) >= _EMPTY_SHARES[column % len(_EMPTY_SHARES)]
        categories[:, column] = np.where(present, names[drawn], b"")
        weights = generator.normal(scale=_CATEGORY_WEIGHT, size=cardinality)
        log_odds += weights[drawn] * present
    dense = np.empty((rows, DENSE_COUNT), np.int64)
    dense_present = np.empty((rows, DENSE_COUNT), np.bool_)
    for column in range(DENSE_COUNT):
        location, scale = generator.uniform(0.5, 4.0), generator.uniform(0.8, 1.8)
        logarithms = generator.normal(location, scale, rows)
        present = generator.random(rows) >= _EMPTY_SHARES[column % len(_EMPTY_SHARES)]
        # Minus 1: a small draw becomes the -1 that real logs have too.
        dense[:, column] = np.rint(np.expm1(logarithms)) * present
        dense_present[:, column] = present
        weight = generator.normal(scale=_DENSE_WEIGHT)
        log_odds += weight * (logarithms - location) * present
    # The constant that makes the mean probability `_CLICK_SHARE`, by bisection.
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        share = float(np.mean(1.0 / (1.0 + np.exp(-log_odds - middle))))
        low, high = (middle, high) if share < _CLICK_SHARE else (low, middle)
    probabilities = 1.0 / (1.0 + np.exp(-log_odds - low))
    return ClickLog(
        labels=(generator.random(rows) < probabilities).astype(np.float32),
        dense=dense,
        dense_present=dense_present,
        categories=categories,
    )
