from pathlib import Path

import torch
from torch import Tensor, nn

from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.publishing.publication import publish
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, OutputGate, TableSpec, TowerSpec
from tests.support.servers import Command


class TwoHeads(nn.Module):
    def forward(self, embeddings: Tensor) -> dict[str, Tensor]:
        logit = embeddings.sum(1)
        return {"click": logit.sigmoid(), "value": 1000 * logit}


class Positional(nn.Module):
    """A program without names, as older ones are."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (inputs[0].sum(1) + inputs[1].sum(1),)


def test_publish_says_that_a_program_without_names_is_bound_by_position(
    tmp_path: Path, sharded_infer: Command
) -> None:
    batch = torch.export.Dim("batch", min=1)
    given = (torch.ones(2, 3), torch.ones(2, 8))
    shapes = (({0: batch}, {0: batch}),)
    program = torch.export.export(Positional(), given, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "tower.pt2")
    # Scores so small that int8 rows never change them by as much as the gate allows.
    torch.save({"item.weight": 0.1 * torch.randn(50, 8)}, tmp_path / "model.pt")
    (tmp_path / "model.toml").write_text(
        'name = "m"\n[[tables]]\nname = "item"\nrows = 50\ndim = 8\n'
        '[dense]\ninputs = { numbers = 3 }\n[tower]\nprogram = "tower.pt2"\n'
    )
    options = ("--spec", tmp_path / "model.toml", "--weights", tmp_path / "model.pt")
    done = sharded_infer("publish", *options, "--repository", tmp_path / "models")
    assert done.code == 0
    assert "tower.pt2 does not say its inputs' names" in done.err
    assert "order numbers, embeddings" in done.err


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
