import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer import CalibrationSamples, Repository, open_model, read_calibration
from sharded_infer.artifacts.golden import generate_samples, load_golden, save_golden
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.errors import GateError, SpecError, TowerError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.publication import PublishedVersion, publish
from sharded_infer.quality.quality_gate import check_differences
from sharded_infer.quality.score_difference import ScoreDifference
from sharded_infer.quality.shared_traits import shared_traits
from sharded_infer.reports.quantization.page import render_quantization_page
from sharded_infer.repositories.version_diff import diff_versions
from sharded_infer.specs.model_spec import (
    DenseSpec,
    GateSpec,
    ModelSpec,
    OutputGate,
    QuantizationSpec,
    TableSpec,
    TowerSpec,
)

ROWS, DIM = 50, 8
OUTPUTS = ("click", "value")


class TwoHeads(nn.Module):
    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        logit = embeddings.sum(1)
        return {"click": (logit / 50).sigmoid(), "value": 400 * logit + dense.sum(1)}


class Spoilt(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, 1)
        with torch.no_grad():
            self.layer.weight[0, 3] = weight

    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        score = self.layer(embeddings).squeeze(1)
        return {"click": embeddings.sum(1), "value": (dense.sum(1) - 100).log() + score}


def spec_of(gate: GateSpec) -> ModelSpec:
    return ModelSpec(
        name="heads",
        tables=(TableSpec("item", ROWS, DIM),),
        dense=DenseSpec({"dense": 2}),
        tower=TowerSpec(outputs=OUTPUTS),
        quantization=QuantizationSpec(format="int4", clip=False),  # type: ignore[arg-type]
        gate=gate,
    )


def weights() -> dict[str, Tensor]:
    return {"item.weight": torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))}


def samples_of(spec: ModelSpec) -> ModelInput:
    return generate_samples(spec, 300, seed=5)


def published(
    folder: Path, gate: GateSpec, calibration: CalibrationSamples | None = None
) -> PublishedVersion:
    return publish(spec_of(gate), weights(), TwoHeads(), folder, calibration=calibration)


RELATIVE = GateSpec(outputs={"value": OutputGate(max_relative_diff=0.3)})


def test_an_output_with_a_relative_bound_may_be_of_any_magnitude(tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"'value' differs .* allows 0.05 \(gate.max_score_diff\)"):
        published(tmp_path, GateSpec())
    version = published(tmp_path, RELATIVE)
    assert version.max_score_diff > 1
    outputs = Repository(tmp_path).open("heads").manifest.golden.outputs
    assert outputs is not None
    click, value = outputs
    assert (click.name, click.allowed_score_diff, click.allowed_relative_diff) == (
        "click", 0.05, None,
    )  # fmt: skip
    assert click.max_score_diff < 0.05 < 1 < value.max_score_diff == version.max_score_diff
    assert value.max_relative_diff is not None
    assert 0.001 < value.max_relative_diff < 0.3
    assert (value.allowed_score_diff, value.allowed_relative_diff) == (None, 0.3)


@pytest.mark.parametrize(
    ("absolute", "relative", "words"),
    [
        (None, 1e-6, r".*square .*1e-06 \(gate.outputs.value.max_r"),
        (0.5, None, r"differs .*0.5 \(gate.outputs.value.max_score_d"),
        (1e9, 1e-6, r".*\(gate.outputs.value.max_relative_diff\)"),
    ],
)
def test_a_bound_that_fails_is_told_with_its_output(
    absolute: float | None, relative: float | None, words: str, tmp_path: Path
) -> None:
    gate = OutputGate(max_score_diff=absolute, max_relative_diff=relative)
    with pytest.raises(GateError, match=f"'value' {words}"):
        published(tmp_path, GateSpec(outputs={"value": gate}))


def test_a_server_checks_golden_requests_by_output(tmp_path: Path) -> None:
    version = published(tmp_path, RELATIVE)
    model = open_model(version.path)
    check_golden(model)
    spec = spec_of(RELATIVE)
    path = version.path / "golden.safetensors"
    golden = load_golden(path, spec)
    path.chmod(0o600)
    scores = golden.scores | {"value": golden.scores["value"] * 3}
    save_golden(path, spec, replace(golden, scores=scores))
    with pytest.raises(GateError, match=r"'value' differs .*gate.outputs.value.max_relative_diff"):
        check_golden(model)


class Wide(nn.Module):
    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        wide = (dense[:, :1] + torch.zeros(2**14)).cos().sum(1)
        return {"click": embeddings.sum(1), "value": wide}


def test_checks_run_batches_whose_results_fit_the_bound_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = publish(spec_of(GateSpec(10.0)), weights(), Wide(), tmp_path).path
    # Two results of 64 KiB a sample are needed at the same time.
    for bytes_, expected in ((2**32, 64), (5 * 2**17, 5)):
        monkeypatch.setattr("sharded_infer.towers.program.program.MOST_BYTES", bytes_)
        model, sizes = open_model(path), []
        ran = model.engine.score

        def score(dense: Sequence[Tensor], *rest: Tensor) -> tuple[Tensor, ...]:
            sizes.append(len(dense[0]))  # noqa: B023 - this round's
            return ran(dense, *rest)  # noqa: B023

        monkeypatch.setattr(model.engine, "score", score)
        check_golden(model)
        assert max(sizes) == expected


def labelled(spec: ModelSpec) -> CalibrationSamples:
    """Labels that the trained scores rank perfectly, of values that differ by little."""
    given = samples_of(spec)
    group = given.groups[0]
    rows = weights()["item.weight"].sum(1).numpy()
    owners = np.repeat(np.arange(given.batch_size), group.lengths[0])
    logits = np.bincount(owners, rows[group.values], given.batch_size)
    truth = (logits > np.median(logits)).astype(np.float32)
    return CalibrationSamples(given, {"value": truth})


def test_the_auc_of_an_output_that_is_not_the_first_is_judged(tmp_path: Path) -> None:
    gate = GateSpec(outputs={"value": OutputGate(max_relative_diff=1.0, max_auc_drop=0.0)})
    with pytest.raises(GateError, match=r"AUC of 'value' falls .*gate.outputs.value.max_auc_drop"):
        published(tmp_path, gate, labelled(spec_of(gate)))
    default = GateSpec(max_auc_drop=0.0, outputs={"value": OutputGate(max_relative_diff=1.0)})
    with pytest.raises(GateError, match=r"AUC of 'value' falls .*\(gate.max_auc_drop\)"):
        published(tmp_path, default, labelled(spec_of(default)))


def test_a_bound_on_auc_needs_labels_of_that_output(tmp_path: Path) -> None:
    gate = GateSpec(outputs={"click": OutputGate(max_auc_drop=0.1)})
    with pytest.raises(SpecError, match=r"gate.outputs.click.max_auc_drop: .*labels of 'click'"):
        published(tmp_path, gate, labelled(spec_of(gate)))


def test_the_report_says_scores_by_output(tmp_path: Path) -> None:
    gate = replace(RELATIVE, outputs={"value": OutputGate(max_relative_diff=1.0)})
    version = published(tmp_path, gate, labelled(spec_of(gate)))
    assert version.report.calibration is not None
    mixes = version.report.calibration.mixes
    click, value = mixes[1].outputs
    assert (click.name, value.name) == OUTPUTS
    assert click.auc is None
    assert mixes[0].outputs[1].auc == 1.0
    assert value.auc is not None
    assert value.auc < 1.0
    assert click.max_score_diff < 1 < value.max_score_diff
    assert "<h3>By output</h3>" in render_quantization_page(version.report)
    published(tmp_path, gate, labelled(spec_of(gate)))
    gates = diff_versions(Repository(tmp_path), "heads", (1, 2)).gates
    assert [found.name for found in gates[0].outputs] == list(OUTPUTS)
    assert [found.fp32_auc for found in gates[1].output_auc] == [None, 1.0]


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (float("nan"), "'value' of the trained model is nan .*tower makes it; its parameter 'lay"),
        (1.0, "'value' .*inputs are finite: the tower makes it; all its parameters are finite, so"),
    ],
)
def test_scores_of_nan_are_blamed_on_the_tower(weight: float, words: str, tmp_path: Path) -> None:
    spec, tower = spec_of(GateSpec()), Spoilt(weight)
    for calibration in (None, CalibrationSamples(samples_of(spec))):
        with pytest.raises(TowerError, match=words) as refused:
            publish(spec, weights(), tower, tmp_path, calibration=calibration)
        assert "table" not in str(refused.value)


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(ValueError, match="gate.outputs: 'valeu' is not one of the outputs click, "):
        spec_of(GateSpec(outputs={"valeu": OutputGate()}))


def test_an_output_can_name_the_column_of_its_labels(tmp_path: Path) -> None:
    labels = {"value": OutputGate(label="bought"), "click": OutputGate(label="clicked")}
    spec = spec_of(GateSpec(outputs=labels))
    path = tmp_path / "samples.jsonl"
    rows = [
        {"item": [1], "dense": [0.0, 1.0], "bought": 1, "clicked": 0},
        {"item": [2], "dense": [0.0, 1.0], "bought": 0, "clicked": 1},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = read_calibration(spec, path)
    assert found.labels["value"].tolist() == [1.0, 0.0]
    assert found.labels["click"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("lengths", "rows", "trait"),
    [
        ([0, 2, 0, 1], [7, 8, 9], "no ids of 'item'"),
        ([1, 2, 1, 3], [4, 5, 6, 7, 8, 9, 9], "at most 1 id of 'item'"),
        ([2, 2, 2, 1], [3, 5, 1, 2, 4, 3, 6], "row 3 of table 'item'"),
        ([2, 1, 2, 1], [3, 5, 3, 4, 3, 6], ""),
    ],
)
def test_what_refused_samples_alone_have_is_named(
    lengths: list[int], rows: list[int], trait: str
) -> None:
    jagged = JaggedBatch((0,), np.array(rows), np.array([lengths]))
    samples = ModelInput(4, (jagged,), (np.zeros((4, 2), np.float32),))
    chosen = np.array([True, False, True, False])
    found = {"click": ScoreDifference(0.5, 1.0, np.where(chosen, 0.5, 0.01))}
    traits = partial(shared_traits, spec_of(GateSpec()), samples)
    with pytest.raises(GateError) as caught:
        check_differences(GateSpec(max_score_diff=0.1), found, "m: a sample", traits=traits)
    ending = f"; they alone have {trait}" if trait else ""
    assert str(caught.value).endswith(f"(sample 0 the most, 2 of 4 beyond the bound{ending})")
