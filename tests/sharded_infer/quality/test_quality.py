import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from kernels.row_format import RowFormat
from quant.sources.table_weight import find_weight
from quant.sources.weight_source import TensorSource
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.errors import TowerError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.format_selection import plan_formats
from sharded_infer.quality.auc import auc
from sharded_infer.quality.contributions import table_contributions
from sharded_infer.quality.fp32_model import Fp32Model, Mix
from sharded_infer.quality.quality import (
    CalibrationSamples,
    compared_mixes,
    measure_quality,
    table_bytes,
)
from sharded_infer.specs.model_spec import ModelSpec, TowerSpec
from sharded_infer.specs.spec_file import parse_spec

SAMPLES = 600  # more than are scored together


class Clicks(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return torch.sigmoid(embeddings.sum(1) / 4)


FIELDS = {
    "name": "m",
    "tables": [
        {"name": "big", "rows": 100, "dim": 16},
        {"name": "mean", "rows": 50, "dim": 8, "pooling": "mean"},
        {"name": "zero", "rows": 5, "dim": 4},
    ],
    "quantization": {"format": "int4"},
}


@pytest.fixture
def model() -> Fp32Model:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "big": torch.randn(100, 16, generator=generator),
        "mean": torch.randn(50, 8, generator=generator) / 10,
        "zero": torch.zeros(5, 4),
    }
    plan = plan_formats(parse_spec(FIELDS), TensorSource(tensors))
    return Fp32Model(plan.spec, plan.weights, Clicks())


@pytest.fixture
def samples(model: Fp32Model) -> CalibrationSamples:
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 4, (3, SAMPLES))
    values = [
        generator.integers(0, table.rows, int(count))
        for table, count in zip(model.spec.tables, lengths.sum(1), strict=True)
    ]
    group = JaggedBatch((0, 1, 2), np.concatenate(values), lengths)
    model_input = ModelInput(SAMPLES, (group,), ())
    scores = Fp32Model(model.spec, model.weights, Clicks()).scores(model_input)["score"]
    labels = (generator.random(SAMPLES) < scores).astype(np.float32)
    labels[:10] = np.nan
    return CalibrationSamples(model_input, {"score": labels})


def test_mixes_are_compared_with_the_fp32_model(
    model: Fp32Model, samples: CalibrationSamples
) -> None:
    reports = {r.name: r for r in measure_quality(model, samples, compared_mixes(model.spec))}
    assert list(reports) == ["fp32", "fp16", "int8", "int4", "int2"]
    reference = Fp32Model(model.spec, model.weights, Clicks()).scores(samples.model_input)["score"]
    labels = samples.labels["score"]
    known = ~np.isnan(labels)
    assert reports["fp32"].auc == auc(labels[known], reference[known])
    truth = labels[known] == 1
    likely = np.where(truth, reference[known], 1 - reference[known].astype(np.float64))
    assert reports["fp32"].log_loss == pytest.approx(-np.log(likely).mean())
    assert (reports["fp32"].mean_score_diff, reports["fp32"].max_score_diff) == (0, 0)
    for better, worse in (("fp16", "int8"), ("int8", "int4"), ("int4", "int2")):
        assert reports[better].mean_score_diff < reports[worse].mean_score_diff
        assert reports[better].max_score_diff < reports[worse].max_score_diff
    for report in reports.values():
        assert report.mean_score_diff <= report.p99_score_diff <= report.max_score_diff
    assert reports["int4"].table_bytes == table_bytes(model.spec, None)
    assert reports["fp32"].table_bytes == 4 * (100 * 16 + 50 * 8 + 5 * 4)


def test_what_is_served_is_measured_as_it_answers(
    model: Fp32Model, samples: CalibrationSamples
) -> None:
    def served(batch: ModelInput) -> dict[str, np.ndarray]:
        (embeddings,) = model.pooled(batch, [Mix()])
        return {"score": model.score(batch, embeddings)["score"] + np.float32(0.25)}

    fp32, published, _ = measure_quality(model, samples, {"x": Mix()}, ("published", served))
    assert (fp32.name, published.name) == ("fp32", "published")
    assert published.max_score_diff == pytest.approx(0.25, abs=1e-6)
    assert published.auc == pytest.approx(fp32.auc, abs=1e-4)
    # Scores above 1 are no probabilities.
    assert published.log_loss is None


def test_scores_of_nan_are_infinitely_far(model: Fp32Model, samples: CalibrationSamples) -> None:
    def served(batch: ModelInput) -> dict[str, np.ndarray]:
        return {"score": np.full(batch.batch_size, np.nan, np.float32)}

    _, published = measure_quality(model, samples, {}, ("published", served))
    assert published.max_score_diff == np.inf
    assert published.auc is None


def test_labels_of_one_class_have_no_auc(model: Fp32Model, samples: CalibrationSamples) -> None:
    ones = CalibrationSamples(samples.model_input, {"score": np.ones(SAMPLES, np.float32)})
    (fp32,) = measure_quality(model, ones, {})
    assert fp32.auc is None
    assert fp32.log_loss is not None
    unlabelled = CalibrationSamples(samples.model_input)
    (fp32,) = measure_quality(model, unlabelled, {})
    assert (fp32.auc, fp32.log_loss, unlabelled.labelled) == (None, None, 0)


def test_tables_are_ranked_by_what_they_do_alone(
    model: Fp32Model, samples: CalibrationSamples
) -> None:
    formats = dict.fromkeys(("big", "mean", "zero"), RowFormat.INT4)
    found = table_contributions(model, Mix(formats), samples.model_input)
    # The table of zeros is stored exactly.
    assert [c.table for c in found] == ["big", "mean"]
    _, report = measure_quality(model, samples, {"alone": Mix({"mean": RowFormat.INT4})})
    assert found[1].mean_score_diff == pytest.approx(report.mean_score_diff)
    assert found[1].max_score_diff == pytest.approx(report.max_score_diff)


FEW_SAMPLES = 20


class Echo(nn.Module):
    def __init__(self, result: object = None) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.9)
        self.result = result

    def forward(self, *, embeddings: Tensor, **dense: Tensor) -> object:
        return self.dropout(embeddings) if self.result is None else self.result


def pooled_by_torch(spec: ModelSpec, weights: dict[str, Tensor], group: JaggedBatch) -> Tensor:
    """Every bag by torch's own operator; a weighted mean divides by the number of ids."""
    pooled = []
    ends = np.cumsum(group.lengths.sum(axis=1))
    for index, feature in enumerate(spec.features):
        table = feature.table
        part = slice(ends[index] - group.lengths[index].sum(), ends[index])
        lengths = torch.from_numpy(group.lengths[index])
        scale = None if group.weights is None else torch.from_numpy(group.weights[part])
        sums = embedding_bag(
            torch.from_numpy(group.values[part]),
            weights[table.name],
            torch.cumsum(lengths, 0) - lengths,
            mode="sum",
            per_sample_weights=scale,
        )
        pooled.append(sums / lengths.clamp(min=1)[:, None] if table.pooling == "mean" else sums)
    return torch.cat(pooled, dim=1)


def scored(
    spec: ModelSpec, weights: dict[str, Tensor], tower: nn.Module, model_input: ModelInput
) -> dict[str, np.ndarray]:
    source = TensorSource(weights)
    found = {t.name: find_weight(source, t.name, None, rows=t.rows, dim=t.dim) for t in spec.tables}
    return Fp32Model(spec, found, tower).scores(model_input)


def echoing(spec: ModelSpec) -> ModelSpec:
    return ModelSpec(spec.name, spec.tables, spec.dense, TowerSpec())


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_bags_are_pooled_as_torch_pools_them(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], weighted: bool
) -> None:
    model_input = generate_samples(trained_spec, FEW_SAMPLES)
    (group,) = model_input.groups
    if weighted:
        weights = np.random.default_rng(0).random(len(group.values), dtype=np.float32)
        group = JaggedBatch(group.features, group.values, group.lengths, weights)
        model_input = ModelInput(FEW_SAMPLES, (group,), model_input.dense)
    scores = scored(echoing(trained_spec), trained_weights, Echo(), model_input)
    wanted = pooled_by_torch(trained_spec, trained_weights, group)
    torch.testing.assert_close(torch.from_numpy(scores["score"]), wanted)


def test_scores_are_the_trained_towers(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], trained_tower: nn.Module
) -> None:
    model_input = generate_samples(trained_spec, FEW_SAMPLES)
    scores = scored(trained_spec, trained_weights, trained_tower, model_input)
    age, context = map(torch.from_numpy, model_input.dense)
    embeddings = pooled_by_torch(trained_spec, trained_weights, model_input.groups[0])
    with torch.no_grad():
        wanted = trained_tower(user_age=age, context=context, embeddings=embeddings)
    assert list(scores) == ["click", "rating"]
    for name, score in wanted.items():
        torch.testing.assert_close(torch.from_numpy(scores[name]), score)


@pytest.mark.parametrize("training", [False, True])
def test_the_tower_is_evaluated_and_left_in_its_mode(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], training: bool
) -> None:
    tower = Echo().train(training)
    model_input = generate_samples(trained_spec, FEW_SAMPLES)
    first, again = (
        scored(echoing(trained_spec), trained_weights, tower, model_input)["score"]
        for _ in range(2)
    )
    assert np.array_equal(first, again)
    assert tower.training is training
    assert tower.dropout.training is training


@pytest.mark.parametrize("result", [{"other": torch.zeros(1)}, {}, (torch.zeros(1),), 3])
def test_other_outputs_than_the_specs_are_refused(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], result: object
) -> None:
    model_input = generate_samples(trained_spec, FEW_SAMPLES)
    with pytest.raises(TowerError, match=r"expected the outputs \['score'\]"):
        scored(echoing(trained_spec), trained_weights, Echo(result), model_input)
