import os
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.demo.criteo import ClickLog, Examples, Vocabulary, read_clicks
from serving.demo.generated_clicks import generate_clicks
from serving.demo.training import BATCH_SIZE, TrainedModel, train
from sharded_infer.errors import InputError
from sharded_infer.quality.auc import auc

DATA = Path(os.environ.get("SHARDED_INFER_DATA", Path(__file__).parents[3].parent / "shared/data"))
SAMPLE = DATA / "criteo_sample.tsv"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    path = tmp_path_factory.mktemp("clicks") / "clicks.tsv"
    generate_clicks(path, 5000, seed=0)
    return read_clicks(path, None)


@pytest.fixture(scope="module")
def vocabulary(log: ClickLog) -> Vocabulary:
    return Vocabulary.fit(log.slice(0, 4000))


def trained(examples: Examples, seed: int = 0, epochs: int = 1, dim: int = 16) -> TrainedModel:
    return train(examples, dim=dim, epochs=epochs, seed=seed, on_step=lambda *_: None)


def test_a_model_trained_on_a_generated_log_tells_clicks_from_the_rest(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    model = trained(vocabulary.encode(log.slice(0, 4000)), epochs=2)
    test = vocabulary.encode(log.slice(4000, 5000))
    scores = model.scores(test, 256)
    assert scores.shape == (1000,) and scores.dtype == np.float32
    assert ((scores > 0) & (scores < 1)).all()
    assert auc(test.labels, scores) > 0.6


@pytest.mark.skipif(not SAMPLE.exists(), reason=f"the real sample is not at {SAMPLE}")
def test_a_model_trained_on_the_real_sample_tells_clicks_from_the_rest() -> None:
    real = read_clicks(SAMPLE, None)
    vocabulary = Vocabulary.fit(real.slice(0, 6400), min_count=8)
    model = trained(vocabulary.encode(real.slice(0, 6400)), epochs=2, dim=64)
    test = vocabulary.encode(real.slice(6400, 8000))
    assert auc(test.labels, model.scores(test, 512)) > 0.7


def test_the_same_seed_trains_the_same_model_and_leaves_torchs_generator_alone(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    examples = vocabulary.encode(log.slice(0, 300))
    before = torch.get_rng_state()
    first = trained(examples, seed=5).scores(examples, 300)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    again = trained(examples, seed=5).scores(examples, 300)
    other = trained(examples, seed=6).scores(examples, 300)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_model_has_a_table_for_each_feature_and_scores_without_gradients(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    examples = vocabulary.encode(log.slice(0, 100))
    model = trained(examples)
    assert list(model.embeddings) == [f"C{number}" for number in range(1, 27)]
    for table, rows in zip(model.embeddings.values(), vocabulary.rows, strict=True):
        assert table.weight.shape == (rows, 16) and table.mode == "sum"
    assert not model.tower.training


def test_scores_do_not_depend_on_the_batch_and_equal_a_lookup_by_hand(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    examples = vocabulary.encode(log.slice(0, 150))
    model = trained(examples)
    scores = model.scores(examples, 150)
    np.testing.assert_allclose(model.scores(examples, 7), scores, rtol=1e-5)
    pooled = torch.zeros(150, 26, 16)
    values = iter(examples.values.tolist())
    for position, table in enumerate(model.embeddings.values()):
        for sample in range(150):
            for _ in range(int(examples.lengths[position, sample])):
                pooled[sample, position] += table.weight.detach()[next(values)]
    with torch.no_grad():
        expected = model.tower(torch.from_numpy(examples.dense), pooled.flatten(1))
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-5)
    assert model.scores(examples.slice(0, 0), 10).shape == (0,)


def test_a_feature_that_is_always_empty_trains_and_scores(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    part = log.slice(0, 100)
    categories = part.categories.copy()
    categories[:, [0, 7, 25]] = b""
    emptied = ClickLog(part.labels, part.dense, part.dense_present, categories)
    examples = vocabulary.encode(emptied)
    assert np.isfinite(trained(examples).scores(examples, 50)).all()


def test_every_step_is_reported_with_its_epoch_and_loss(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    steps: list[tuple[int, int, float]] = []
    train(
        vocabulary.encode(log.slice(0, 2 * BATCH_SIZE + 1)),
        dim=4,
        epochs=2,
        seed=0,
        on_step=lambda epoch, step, loss: steps.append((epoch, step, loss)),
    )
    assert [(epoch, step) for epoch, step, _ in steps] == [
        (1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6),
    ]  # fmt: skip
    assert all(np.isfinite(loss) and loss > 0 for *_, loss in steps)


def test_training_and_scoring_refuse_sizes_below_one_and_other_tables(
    log: ClickLog, vocabulary: Vocabulary
) -> None:
    examples = vocabulary.encode(log.slice(0, 10))
    with pytest.raises(InputError, match="epochs must be at least 1, got 0"):
        trained(examples, epochs=0)
    with pytest.raises(InputError, match="dim must be at least 1, got -1"):
        trained(examples, dim=-1)
    with pytest.raises(InputError, match="the number of examples must be at least 1, got 0"):
        trained(examples.slice(0, 0))
    model = trained(examples)
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        model.scores(examples, 0)
    other = Vocabulary.fit(log, min_count=50).encode(log.slice(0, 10))
    with pytest.raises(InputError, match="the model's tables have"):
        model.scores(other, 10)


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([0, 1], [0.1, 0.9], 1.0),
        ([0, 1], [0.9, 0.1], 0.0),
        ([0, 1], [0.5, 0.5], 0.5),
        ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], 0.75),
        ([1, 0, 1, 0, 0], [0.7, 0.7, 0.2, 0.2, 0.1], 4.0 / 6.0),
    ],
)
def test_the_auc_of_small_cases_is_the_share_of_ordered_pairs(
    labels: list[int], scores: list[float], expected: float
) -> None:
    assert auc(labels, scores) == pytest.approx(expected, abs=1e-15)


def test_the_auc_counts_pairs_and_halves_ties_in_random_cases() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        labels = np.append(generator.integers(0, 2, 60), [0, 1])
        scores = generator.integers(0, 12, 62) / 8.0
        gaps = scores[labels == 1][:, None] - scores[labels == 0][None, :]
        assert auc(labels, scores) == pytest.approx(np.mean((gaps > 0) + 0.5 * (gaps == 0)))


def test_the_auc_agrees_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, 5000)
    scores = np.round(generator.normal(labels, 2.0), 1).astype(np.float32)
    assert auc(labels, scores) == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1, 1], [0.1, 0.2], "both classes, got 2 positives and 0 negatives"),
        ([0], [0.1], "got 0 positives and 1 negatives"),
        ([], [], "got 0 positives and 0 negatives"),
        ([0, 2], [0.1, 0.2], "labels must be 0 or 1"),
        ([0, 1], [0.1, float("nan")], "must be finite, got nan at position 1"),
        ([0, 1], [0.1], r"got shapes \(2,\) and \(1,\)"),
    ],
)
def test_the_auc_refuses_what_it_is_not_defined_for(
    labels: list[int], scores: list[float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        auc(labels, scores)
