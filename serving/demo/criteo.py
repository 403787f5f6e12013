"""Criteo's display-advertising click log: its format and its vocabulary.

A line has 40 tab-separated fields: a label (0 or 1), 13 integers and 26 categories of up to 8
hexadecimal digits. Integers and categories may be empty. The format is that of the Kaggle Display
Advertising Challenge data set (Criteo Labs, 2014).
"""

import re
from array import array
from dataclasses import dataclass, field
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
    """N lines of a click log, as written.

    Labels `[N]` are 1 for a click. Dense fields are `[N, 13]`; empty ones are 0 and not present.
    Categories are their digits, S8 `[N, 26]`.
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
    """N samples in the form of model inputs: labels, dense inputs and a jagged batch of ids.

    Attributes:
        dense: `[N, 13]`.
        lengths: `[26, N]`, the number of ids of each feature's bags.
        values: `[sum of lengths]`, ids, feature-major.
        texts: S8 `[sum of lengths]`, the categories in the log; None: not kept.
        rows: for each feature, the number of possible ids.
        bag_starts: `[26, N]`, offsets of bags in `values`; derived from `lengths`.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    lengths: NDArray[np.int32]
    values: NDArray[np.int64]
    rows: tuple[int, ...]
    texts: NDArray[np.bytes_] | None = None
    bag_starts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        ends = np.cumsum(self.lengths, dtype=np.int64).reshape(self.lengths.shape)
        # Frozen, and derived once: `select` would otherwise scan every length.
        object.__setattr__(self, "bag_starts", ends - self.lengths)

    def __len__(self) -> int:
        return self.labels.size

    def select(self, positions: NDArray[np.int64]) -> Self:
        """Samples at `positions` (`[M]`, each in `[0, N)`), in that order."""
        lengths = self.lengths[:, positions]
        counts = lengths.ravel()
        # The k-th value of the result lies as far from its bag's start as in the source.
        shifts = self.bag_starts[:, positions].ravel() - (np.cumsum(counts) - counts)
        sources = np.repeat(shifts, counts) + np.arange(counts.sum())
        return type(self)(
            labels=self.labels[positions],
            dense=self.dense[positions],
            lengths=lengths,
            values=self.values[sources],
            rows=self.rows,
            texts=None if self.texts is None else self.texts[sources],
        )

    def slice(self, start: int, stop: int) -> Self:
        """Samples `start` to `stop` (exclusive), with Python's rules for both."""
        return self.select(np.arange(*slice(start, stop).indices(len(self)), dtype=np.int64))


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

        An integer x becomes `log(1 + max(x, 0))`, an empty one 0. A category becomes a bag of its
        id, or of 0 if not kept; an empty one becomes an empty bag.
        """
        dense = np.log1p(np.maximum(log.dense, 0)) * log.dense_present
        present = log.categories.T != b""  # [26, N]
        values = []
        for kept, column, filled in zip(self.kept, log.categories.T, present, strict=True):
            wanted = column[filled]
            places = np.searchsorted(kept, wanted)
            # The appended b"" stands behind the last value and equals no category.
            is_kept = np.append(kept, b"")[places] == wanted
            values.append(np.where(is_kept, places + 1, 0))
        return Examples(
            labels=log.labels,
            dense=dense.astype(np.float32),
            lengths=present.astype(np.int32),
            values=np.concatenate(values).astype(np.int64),
            rows=self.rows,
            texts=log.categories.T[present] if keep_texts else None,
        )


# More than 40 fields can have: longer lines do not fit the format.
_MOST_LINE_BYTES = 4096


def read_clicks(path: Path, limit: int) -> ClickLog:
    """Read the first `limit` lines of a click log.

    Raises InputError, with file, line, column and the expected content, if the file cannot be read
    or is empty, or a line has another format.
    """
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
