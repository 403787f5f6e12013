import numpy as np
import pytest

from serving.demo.sequences.ratings import RatingLog, generated_ratings
from serving.demo.sequences.samples import (
    MAX_LENGTH,
    SequenceSamples,
    SplitSamples,
    popularity,
    split_samples,
)
from sharded_infer.errors import InputError


@pytest.fixture(scope="module")
def log() -> RatingLog:
    return generated_ratings(2000, seed=0)


@pytest.fixture(scope="module")
def split(log: RatingLog) -> SplitSamples:
    return split_samples(log, seed=0)


def history(samples: SequenceSamples, position: int) -> slice:
    end = int(samples.ends[position])
    return slice(end - int(samples.lengths[position]), end)


def test_a_history_is_what_the_user_rated_before(log: RatingLog, split: SplitSamples) -> None:
    for samples in (split.training, split.held_out):
        for position in range(0, len(samples), 7):
            place, seen = int(samples.ends[position]), history(samples, position)
            assert (log.users[seen] == log.users[place]).all()
            assert (log.times[seen] <= samples.times[position]).all()
            before = int((log.users[:place] == log.users[place]).sum())
            assert samples.lengths[position] == min(before, MAX_LENGTH)
            if samples.labels[position]:
                assert samples.candidates[position] == samples.log.items[place]
    assert split.training.lengths.min() == 0 and split.training.lengths.max() == MAX_LENGTH


def test_the_held_out_part_is_later_and_knows_only_trained_items(
    log: RatingLog, split: SplitSamples
) -> None:
    training, held_out = split.training, split.held_out
    assert training.times.max() < held_out.times.min()
    assert 0.78 < (log.times < held_out.times.min()).mean() <= 0.8
    assert (np.diff(training.times) >= 0).all() and (np.diff(held_out.times) >= 0).all()
    assert np.isin(held_out.candidates, training.candidates[training.labels == 1]).all()
    assert (held_out.log.items[held_out.ends] > 0).all()


def test_negatives_are_as_many_and_the_user_never_rated_them(
    log: RatingLog, split: SplitSamples
) -> None:
    for samples in (split.training, split.held_out):
        assert samples.labels.mean() == 0.5
        for position in np.flatnonzero(samples.labels == 0)[::5]:
            user = log.users[samples.ends[position]]
            rated = samples.log.items[log.users == user]
            assert samples.candidates[position] not in rated
    drawn = split.training.candidates[split.training.labels == 0]
    assert drawn.min() >= 1 and drawn.max() < split.training.item_rows


def test_histories_are_padded_on_the_right_with_zeros(split: SplitSamples) -> None:
    samples = split.held_out.select(np.array([5, 0, 40]))
    padded = samples.padded()
    assert padded.items.shape == (3, samples.lengths.max())
    for position, length in enumerate(samples.lengths.tolist()):
        seen = history(samples, position)
        np.testing.assert_array_equal(padded.items[position, :length], samples.log.items[seen])
        np.testing.assert_array_equal(padded.actions[position, :length], samples.log.actions[seen])
        ages = samples.times[position] - samples.log.times[seen]
        np.testing.assert_array_equal(padded.ages[position, :length], ages.astype(np.float32))
        for array in (padded.items, padded.actions, padded.ages):
            assert not array[position, length:].any()
    empty = split.training.select(np.flatnonzero(split.training.lengths == 0)[:2]).padded()
    assert empty.items.shape == (2, 1) and empty.ages.dtype == np.float32


def test_popularity_counts_the_training_parts_ratings(split: SplitSamples) -> None:
    training = split.training
    found = popularity(split.held_out, training)
    for position in (0, 1, 50):
        same = training.candidates == split.held_out.candidates[position]
        assert found[position] == (same & (training.labels == 1)).sum()


@pytest.mark.parametrize(
    ("users", "items", "message"),
    [
        ([1], [1], "training part of 1 rating has 0 positives"),
        # User 1 has rated all items that are known.
        ([1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 1], "has 4 positives and 0 negatives"),
        ([1, 1, 2, 2, 2, 2], [1, 2, 1, 1, 8, 9], "held-out part of 6 ratings has 0 positives"),
    ],
)
def test_a_log_without_positives_or_negatives_is_refused(
    users: list[int], items: list[int], message: str
) -> None:
    count = len(users)
    zeros = np.zeros(count, np.int64)
    log = RatingLog(np.array(users), np.array(items), zeros, np.arange(count))
    with pytest.raises(InputError, match=message):
        split_samples(log, seed=0)
