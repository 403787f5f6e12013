"""Samples of a rating log: a user's history, and an item that the user rated next or never."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from serving.demo.sequences.ratings import RatingLog
from sharded_infer.errors import InputError

MAX_LENGTH = 50  # of a history: the last ones

_TRAINING_SHARE = 0.8
# For a user who has rated nearly all items, few draws are negatives; the rest are dropped.
_DRAWS = 20


@dataclass(frozen=True, slots=True)
class PaddedHistories:
    """Histories, right-padded with 0 to the longest, `[B, L]`, L >= 1; ages in seconds."""

    items: NDArray[np.int64]
    actions: NDArray[np.int64]
    ages: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SequenceSamples:
    """N samples, whose histories are ranges of a log that they share; all arrays are `[N]`.

    Rows of items, in log and candidates, are 1 upwards for the training part, 0 for all others.
    Labels are 1 if the user rated the candidate at that time, in seconds. Histories have up to
    `MAX_LENGTH` items; ends are exclusive.
    """

    log: RatingLog
    item_rows: int
    candidates: NDArray[np.int64]
    labels: NDArray[np.float32]
    times: NDArray[np.int64]
    ends: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return self.labels.size

    def select(self, positions: NDArray[np.int64] | slice) -> Self:
        """Samples at `positions`, in that order."""
        return replace(
            self,
            candidates=self.candidates[positions],
            labels=self.labels[positions],
            times=self.times[positions],
            ends=self.ends[positions],
            lengths=self.lengths[positions],
        )

    def padded(self) -> PaddedHistories:
        """Histories side by side."""
        longest = max(1, int(self.lengths.max(initial=0)))
        steps = np.arange(longest)
        present = steps < self.lengths[:, None]
        places = np.where(present, (self.ends - self.lengths)[:, None] + steps, 0)
        ages = (self.times[:, None] - self.log.times[places]) * present
        return PaddedHistories(
            items=self.log.items[places] * present,
            actions=self.log.actions[places] * present,
            ages=ages.astype(np.float32),
        )


@dataclass(frozen=True, slots=True)
class SplitSamples:
    """Samples before a moment, for training, and after it."""

    training: SequenceSamples
    held_out: SequenceSamples


def split_samples(log: RatingLog, seed: int) -> SplitSamples:
    """Make samples of a log: the first four fifths of its time's ratings are the training part.

    Each rating is a positive; its history is what the user rated before. For each there is a
    negative at the same time: an item drawn uniformly from the training part's items that the user
    never rated, before or after. Held-out ratings of items that the training part lacks are left
    out. Raises InputError if a part has no positives or no negatives.
    """
    moment = np.quantile(log.times, _TRAINING_SHARE, method="higher")
    trained = log.times < moment
    known = np.unique(log.items[trained])
    places = np.searchsorted(known, log.items)
    # The appended -1 stands behind the last known item and equals none.
    is_known = np.append(known, -1)[places] == log.items
    rows = replace(log, items=np.where(is_known, places + 1, 0))
    negatives = _negatives(log.users, rows.items, known.size, np.random.default_rng(seed))
    starts = np.searchsorted(log.users, log.users)

    def part(name: str, chosen: NDArray[np.bool_]) -> SequenceSamples:
        rated = np.flatnonzero(chosen & (rows.items > 0))
        unrated = rated[negatives[rated] > 0]
        if not rated.size or not unrated.size:
            raise InputError(
                f"the {name} part of {counted(log.users.size, 'rating')} has "
                f"{counted(rated.size, 'positive')} and {counted(unrated.size, 'negative')}, "
                "expected at least one of each"
            )
        places = np.concatenate([rated, unrated])
        order = np.argsort(log.times[places], kind="stable")
        places = places[order]
        return SequenceSamples(
            log=rows,
            item_rows=known.size + 1,
            candidates=np.concatenate([rows.items[rated], negatives[unrated]])[order],
            labels=np.repeat(np.array([1, 0], np.float32), [rated.size, unrated.size])[order],
            times=log.times[places],
            ends=places,
            lengths=np.minimum(places - starts[places], MAX_LENGTH),
        )

    return SplitSamples(training=part("training", trained), held_out=part("held-out", ~trained))


def popularity(samples: SequenceSamples, training: SequenceSamples) -> NDArray[np.float64]:
    """Count of each sample's candidate in the training part, fp64 `[N]`: the baseline's score."""
    positives = training.candidates[training.labels == 1]
    counts = np.bincount(positives, minlength=training.item_rows)
    return counts[samples.candidates].astype(np.float64)


def _negatives(
    users: NDArray[np.int64], items: NDArray[np.int64], known: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """For each rating a row of 1 to `known` that its user has not rated, int64 `[E]`; 0: none."""
    _, numbers = np.unique(users, return_inverse=True)
    rated = np.unique(numbers * (known + 1) + items)
    negatives = np.zeros_like(items)
    for _ in range(_DRAWS if known else 0):
        missing = np.flatnonzero(negatives == 0)
        drawn = generator.integers(1, known + 1, missing.size)
        fits = ~np.isin(numbers[missing] * (known + 1) + drawn, rated)
        negatives[missing[fits]] = drawn[fits]
    return negatives
