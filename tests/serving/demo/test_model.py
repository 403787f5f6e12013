import numpy as np
import pytest
import torch

from serving.demo.criteo import ClickLog, Examples, Vocabulary, generated_clicks
from serving.demo.model import TrainedModel, train
from sharded_infer.quality.auc import auc


@pytest.fixture(scope="module")
def log() -> ClickLog:
    return generated_clicks(5000, seed=0)


@pytest.fixture(scope="module")
def vocabulary(log: ClickLog) -> Vocabulary:
    return Vocabulary.fit(log.slice(0, 4000), min_count=2)


def trained(examples: Examples, seed: int = 0, epochs: int = 1) -> TrainedModel:
    return train(examples, dim=16, epochs=epochs, seed=seed, on_step=lambda _: None)


def test_a_model_trained_on_a_generated_log_tells_clicks_from_the_rest(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    model = trained(vocabulary.encode(log.slice(0, 4000)), epochs=2)
    test = vocabulary.encode(log.slice(4000, 5000))
    scores = model.scores(test, 256)
    assert scores.shape == (1000,) and scores.dtype == np.float32
    assert ((scores > 0) & (scores < 1)).all()
    assert auc(test.labels, scores) > 0.6


def test_the_same_seed_trains_the_same_model_and_leaves_torchs_generator_alone(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    examples = vocabulary.encode(log.slice(0, 300))
    before = torch.get_rng_state()
    first = trained(examples, seed=5).scores(examples, 300)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    np.testing.assert_array_equal(trained(examples, seed=5).scores(examples, 300), first)
    assert not np.array_equal(trained(examples, seed=6).scores(examples, 300), first)


def test_scores_do_not_depend_on_the_batch_and_equal_a_lookup_by_hand(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    part = log.slice(0, 150)
    # Features whose bags are all empty train and score too.
    part.categories[:, [7, 25]] = b""
    examples = vocabulary.encode(part)
    model = trained(examples)
    assert list(model.embeddings) == [f"C{number}" for number in range(1, 27)]
    assert not model.tower.training
    scores = model.scores(examples, 150)
    np.testing.assert_allclose(model.scores(examples, 7), scores, rtol=1e-5)
    pooled = torch.zeros(150, 26, 16)
    for position, table in enumerate(model.embeddings.values()):
        for sample in np.flatnonzero(examples.present[:, position]):
            pooled[sample, position] = table.weight.detach()[examples.ids[sample, position]]
    with torch.no_grad():
        expected = model.tower(torch.from_numpy(examples.dense), pooled.flatten(1))
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-5)
