from collections.abc import Iterator

import numpy as np
import pytest
import torch

from serving.demo.sequences.model import OPTIONS, TrainedSequenceModel, train_sequences
from serving.demo.sequences.ratings import generated_ratings
from serving.demo.sequences.samples import SplitSamples, popularity, split_samples
from sharded_infer.quality.auc import auc


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two intra-op threads of small products wait for each other, most on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def samples_of(rows: int) -> SplitSamples:
    return split_samples(generated_ratings(rows, seed=7), seed=7)


@pytest.fixture(scope="module")
def few() -> SplitSamples:
    return samples_of(1000)


def trained(
    architecture: str, split: SplitSamples, *, epochs: int = 1, seed: int = 0
) -> TrainedSequenceModel:
    return train_sequences(
        architecture, split.training, epochs=epochs, seed=seed, on_step=lambda _: None
    )


def test_a_model_ranks_held_out_candidates_better_than_popularity() -> None:
    split = samples_of(20000)
    scores = trained("bst", split, epochs=3).scores(split.held_out, 512)
    labels = split.held_out.labels
    baseline = auc(labels, popularity(split.held_out, split.training))
    assert auc(labels, scores) > baseline + 0.05


@pytest.mark.parametrize("architecture", OPTIONS)
def test_the_same_seed_trains_the_same_model_and_leaves_torchs_generator_alone(
    few: SplitSamples, architecture: str
) -> None:
    before = torch.get_rng_state()
    first = trained(architecture, few).scores(few.held_out, 100)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    again = trained(architecture, few).scores(few.held_out, 100)
    other = trained(architecture, few, seed=1).scores(few.held_out, 100)
    np.testing.assert_array_equal(first, again)
    assert first.shape == (len(few.held_out),) and ((first > 0) & (first < 1)).all()
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("architecture", OPTIONS)
def test_every_model_learns_and_scores_alike_in_all_batches(
    few: SplitSamples, architecture: str
) -> None:
    model, part = trained(architecture, few, epochs=8), few.held_out.select(slice(0, 60))
    scores = model.scores(few.training, 100)
    assert auc(few.training.labels, scores) > 0.7
    np.testing.assert_allclose(model.scores(part, 7), model.scores(part, 60), rtol=1e-4)
    assert model.scores(part.select(slice(0, 0)), 7).shape == (0,)
