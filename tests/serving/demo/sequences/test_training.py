from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.demo.sequences.generated_ratings import generate_ratings
from serving.demo.sequences.ratings import read_ratings
from serving.demo.sequences.samples import SplitSamples, popularity, split_samples
from serving.demo.sequences.training import OPTIONS, TrainedSequenceModel, train_sequences
from sharded_infer.errors import InputError
from sharded_infer.quality.auc import auc


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two intra-op threads of small products wait for each other, most on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def samples_of(folder: Path, rows: int) -> SplitSamples:
    path = folder / "ratings.csv"
    generate_ratings(path, rows, seed=7)
    return split_samples(read_ratings(path, None), seed=7)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> SplitSamples:
    return samples_of(tmp_path_factory.mktemp("few"), 1000)


def trained(
    architecture: str, split: SplitSamples, *, epochs: int = 1, seed: int = 0
) -> TrainedSequenceModel:
    return train_sequences(
        architecture, split.training, epochs=epochs, seed=seed, on_step=lambda *_: None
    )


def test_a_model_ranks_held_out_candidates_better_than_popularity(tmp_path: Path) -> None:
    split = samples_of(tmp_path, 20000)
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
def test_training_lowers_the_loss_of_every_model(few: SplitSamples, architecture: str) -> None:
    losses: list[float] = []
    train_sequences(
        architecture,
        few.training,
        epochs=8,
        seed=0,
        on_step=lambda step, loss: losses.append(loss) if step == len(losses) + 1 else None,
    )
    steps = len(losses) // 8
    assert np.isfinite(losses).all() and steps == -(-len(few.training) // 128)
    assert np.mean(losses[-steps:]) < np.mean(losses[:steps]) - 0.05


@pytest.mark.parametrize("architecture", OPTIONS)
def test_scores_do_not_depend_on_the_batch(few: SplitSamples, architecture: str) -> None:
    model, part = trained(architecture, few), few.held_out.select(slice(0, 60))
    np.testing.assert_allclose(model.scores(part, 7), model.scores(part, 60), rtol=1e-4)
    assert model.scores(part.select(slice(0, 0)), 7).shape == (0,)


def test_training_refuses_other_architectures_and_no_epochs(few: SplitSamples) -> None:
    with pytest.raises(InputError, match="expected one of din, sasrec, bst, hstu, got 'dlrm'"):
        trained("dlrm", few)
    with pytest.raises(InputError, match="epochs must be at least 1, got 0"):
        trained("din", few, epochs=0)
