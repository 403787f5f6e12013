from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from quant.report import CalibrationReport, MixReport, OutputReport, TableContribution
from quant.sources.weight_source import TensorSource
from sharded_infer.errors import GateError, InputError, RequestError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.format_selection import plan_formats
from sharded_infer.quality.auc import auc
from sharded_infer.quality.contributions import table_contributions
from sharded_infer.quality.fp32_model import Fp32Model, Mix, fp32_scores
from sharded_infer.quality.quality import (
    CalibrationSamples,
    check_samples,
    compared_mixes,
    measure_quality,
    table_bytes,
)
from sharded_infer.quality.quality_gate import check_quality
from sharded_infer.specs.model_spec import GateSpec, ModelSpec
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


def spec_of() -> ModelSpec:
    return parse_spec(FIELDS)


@pytest.fixture
def model() -> Fp32Model:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "big": torch.randn(100, 16, generator=generator),
        "mean": torch.randn(50, 8, generator=generator) / 10,
        "zero": torch.zeros(5, 4),
    }
    plan = plan_formats(spec_of(), TensorSource(tensors))
    return Fp32Model(plan.spec, plan.weights, Clicks())


@pytest.fixture
def samples(model: Fp32Model) -> CalibrationSamples:
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 4, (3, SAMPLES))
    values = [
        generator.integers(0, table.rows, int(count))
        for table, count in zip(model.spec.tables, lengths.sum(1), strict=True)
    ]
    model_input = ModelInput(
        SAMPLES, (JaggedBatch((0, 1, 2), np.concatenate(values), lengths),), ()
    )
    scores = fp32_scores(model.spec, model.weights, Clicks(), model_input)["score"]
    labels = (generator.random(SAMPLES) < scores).astype(np.float32)
    labels[:10] = np.nan
    return CalibrationSamples(model_input, {"score": labels})


def test_mixes_are_compared_with_the_fp32_model(
    model: Fp32Model, samples: CalibrationSamples
) -> None:
    mixes = compared_mixes(model.spec)
    reports = {r.name: r for r in measure_quality(model, samples, mixes)}
    assert list(reports) == ["fp32", "fp16", "int8", "int4", "int2"]
    reference = fp32_scores(model.spec, model.weights, Clicks(), samples.model_input)["score"]
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


def test_scores_that_are_not_numbers_are_infinitely_far(
    model: Fp32Model, samples: CalibrationSamples
) -> None:
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


def test_tables_are_ranked_by_what_they_alone_do_to_the_scores(
    model: Fp32Model, samples: CalibrationSamples
) -> None:
    formats = dict.fromkeys(("big", "mean", "zero"), RowFormat.INT4)
    found = table_contributions(model, Mix(formats), samples.model_input)
    # The table of zeros is stored exactly.
    assert [c.table for c in found] == ["big", "mean"]
    alone = Mix({"mean": RowFormat.INT4})
    _, report = measure_quality(model, samples, {"alone": alone})
    assert found[1].mean_score_diff == pytest.approx(report.mean_score_diff)
    assert found[1].max_score_diff == pytest.approx(report.max_score_diff)


def report_of(fp32_auc: float | None, auc: float | None, max_diff: float) -> CalibrationReport:
    outputs = (
        OutputReport("score", 0.0, 0.0, 0.0, 0.5, fp32_auc, None),
        OutputReport("score", 0.001, 0.01, max_diff, 0.5, auc, None),
    )
    mixes = (
        MixReport("fp32", 100, 0.0, 0.0, 0.0, fp32_auc, None, outputs[:1]),
        MixReport("published", 30, 0.001, 0.01, max_diff, auc, None, outputs[1:]),
    )
    contributions = tuple(TableContribution(f"t{i}", 0.1 / (i + 1), 0.2) for i in range(5))
    return CalibrationReport(10, 10, mixes, contributions)


def test_the_gate_lets_small_differences_through() -> None:
    gate = GateSpec(max_score_diff=0.05, max_auc_drop=0.001)
    check_quality(gate, report_of(0.75, 0.7495, 0.04), "m")
    check_quality(gate, report_of(0.75, 0.76, 0.04), "m")
    check_quality(GateSpec(), report_of(None, None, 0.04), "m")


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (report_of(0.75, 0.75, 0.06), r"by 0.06, the spec allows 0.05 \(gate.max_score_diff\); .*"),
        (report_of(0.75, 0.74, 0.01), r"falls by 0.01, from 0.75 to 0.74, the spec allows 0.001"),
        (report_of(0.75, 0.75, float("nan")), "by nan, the spec allows"),
        (report_of(None, None, 0.01), "needs calibration samples with labels of both classes"),
    ],
)
def test_the_gate_says_by_how_much_and_which_tables(report: CalibrationReport, words: str) -> None:
    with pytest.raises(GateError, match=words) as refused:
        check_quality(GateSpec(max_score_diff=0.05, max_auc_drop=0.001), report, "m")
    if report.mixes[0].auc is not None:
        assert "contribute most, each by itself: t0 (mean 0.1, largest 0.2), t1" in str(
            refused.value
        )
        assert "t3" not in str(refused.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.ones(3, np.float32), r"labels of 'score': expected \[600\], got \[3\]"),
        (np.full(SAMPLES, 2, np.float32), "sample 0: its label of 'score' is 2, expected 0 or 1"),
    ],
)
def test_labels_that_are_none_are_refused(
    samples: CalibrationSamples, labels: np.ndarray, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        CalibrationSamples(samples.model_input, {"score": labels})


def test_references_that_are_not_scores_of_the_samples_are_refused(
    samples: CalibrationSamples,
) -> None:
    def refuse(scores: np.ndarray, words: str) -> None:
        with pytest.raises(InputError, match=words):
            CalibrationSamples(samples.model_input, references={"score": scores.astype("f4")})

    refuse(np.zeros(3), r"reference scores of 'score': expected \[600\] or \[600, K\], got \[3\]")
    refuse(np.zeros((SAMPLES, 2, 2)), r"got \[600, 2, 2\]")
    strange = np.zeros((SAMPLES, 2))
    strange[7, 1] = np.nan
    refuse(strange, r"sample 7: its reference score of 'score' is \[0.0, nan\], expected finite")


def test_labels_of_an_output_that_the_model_lacks_are_refused(samples: CalibrationSamples) -> None:
    zeros = {"clicked": np.zeros(SAMPLES, np.float32)}
    for other in (
        CalibrationSamples(samples.model_input, zeros),
        CalibrationSamples(samples.model_input, {}, zeros),
    ):
        with pytest.raises(InputError, match="'clicked' is not one of the outputs score"):
            check_samples(spec_of(), other)


def test_samples_that_cannot_be_scored_are_refused_by_their_number(
    samples: CalibrationSamples,
) -> None:
    spec = spec_of()
    check_samples(spec, samples)
    (batch,) = samples.model_input.groups
    values = batch.values.copy()
    values[0] = 100
    outside = ModelInput(SAMPLES, (replace(batch, values=values),), ())
    with pytest.raises(RequestError, match="'big', sample .: id 100 is outside"):
        check_samples(spec, CalibrationSamples(outside))
    dense = np.zeros((SAMPLES, 3), np.float32)
    dense[7, 1] = np.nan
    with_dense = parse_spec({**FIELDS, "dense": {"inputs": {"age": 3}}})
    strange = ModelInput(SAMPLES, (batch,), (dense,))
    with pytest.raises(InputError, match=r"sample 7, 'age': expected finite .* \[0.0, nan, 0.0\]"):
        check_samples(with_dense, CalibrationSamples(strange))
