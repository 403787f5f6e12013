"""What commands say of a model with several outputs."""

from pathlib import Path

import torch
from torch import Tensor, nn

from sharded_infer.golden import generate_samples
from sharded_infer.publication import publish
from sharded_infer.quality import CalibrationSamples
from sharded_infer.spec import GateSpec, ModelSpec, OutputGate, TableSpec, TowerSpec
from tests.serving.conftest import Command


class TwoHeads(nn.Module):
    def forward(self, embeddings: Tensor) -> dict[str, Tensor]:
        logit = embeddings.sum(1)
        return {"click": logit.sigmoid(), "value": 1000 * logit}


def test_versions_are_told_by_output(tmp_path: Path, sharded_infer: Command) -> None:
    spec = ModelSpec(
        name="heads",
        tables=(TableSpec("item", 50, 8),),
        tower=TowerSpec(outputs=("click", "value")),
        gate=GateSpec(outputs={"value": OutputGate(max_relative_diff=0.02)}),
    )
    weights = {"item.weight": torch.randn(50, 8, generator=torch.Generator().manual_seed(0))}
    given = generate_samples(spec, 100, seed=1)
    truth = (torch.arange(100) % 2).float().numpy()
    calibration = CalibrationSamples(given, {"click": truth, "value": 1 - truth})
    for _ in range(2):
        publish(spec, weights, TwoHeads(), tmp_path, calibration=calibration)
    shown = sharded_infer("repo", "show", tmp_path, "heads", 1)
    assert "click within" in shown.out and "(0.05 allowed); value within" in shown.out
    assert "relative (0.02 allowed)" in shown.out
    told = sharded_infer("repo", "diff", tmp_path, "heads", 1, 2)
    assert "value within" in told.out and "AUC of click 0." in told.out and "; value 0." in told.out
    fields = sharded_infer("repo", "diff", tmp_path, "heads", 1, 2, "--json").json()
    assert [output["name"] for output in fields["gates"][1]["outputs"]] == ["click", "value"]
    assert fields["gates"][1]["outputs"][1]["allowed_relative_diff"] == 0.02
    report = sharded_infer("inspect", "--repository", tmp_path, "--report")
    assert "as published, by output" in report.out
    assert len([line for line in report.out.splitlines() if line.startswith("\u2502 value ")]) == 1
