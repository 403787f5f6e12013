import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quant.report import NOT_COMPARED
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.artifacts.report_file import report_from_fields
from sharded_infer.errors import GateError, SpecError, WeightsError
from sharded_infer.importing.torchrec_model import from_torchrec
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.publishing.publication import PublishedVersion, publish
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.reports.quantization.page import render_quantization_page
from sharded_infer.specs.model_spec import DenseSpec, GateSpec, ModelSpec, TableSpec
from tests.support.torchrec_models import Table, TorchRec

pytestmark = pytest.mark.usefixtures("seeded")
GENRES = TableSpec("genres", rows=9, dim=4)
USERS = TableSpec("users", rows=9, dim=4)
SPEC = ModelSpec("clicks", (GENRES, USERS), DenseSpec({"age": 1}))


class Tower(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.last = nn.Linear(width + 1, 1)

    def forward(self, age: Tensor, embeddings: Tensor) -> Tensor:
        return torch.sigmoid(self.last(torch.cat([age, embeddings], 1)).squeeze(1))


class Doubled(nn.EmbeddingBag):
    def forward(self, *arguments: object, **named: object) -> Tensor:
        return 2 * super().forward(*arguments, **named)


def modules(
    kind: Callable[..., nn.Module] = nn.EmbeddingBag, **options: object
) -> dict[str, nn.Module]:
    return {"genres": kind(9, 4, **options), "users": nn.EmbeddingBag(9, 4, mode="sum")}


def published(
    weights: object, path: Path, spec: ModelSpec = SPEC, **options: object
) -> PublishedVersion:
    return publish(spec, weights, Tower(spec.embedding_width), path / "models", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "mean", "include_last_offset": True},
        {"mode": "mean", "padding_idx": 0},
        {"mode": "sum", "dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_embedding_bags_are_called_as_they_are(options: dict[str, object], tmp_path: Path) -> None:
    found = published(modules(**options), tmp_path).report.imported
    assert found is not None and found.compared_with == "the trained modules"
    assert found.samples == 64 and found.max_embedding_diff is not None
    # Half precision rounds what it returns: the bound is four of its steps.
    step = torch.finfo(options.get("dtype", torch.float32)).eps
    assert found.allowed == max(1e-4, 4 * step)
    assert found.max_embedding_diff < max(1e-6, 2 * step)


def test_a_module_that_looks_up_other_numbers_is_refused_by_feature(tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"feature 'genres', table 'genres': pooled embeddings"):
        published(modules(Doubled, mode="sum"), tmp_path)
    assert not (tmp_path / "models" / "clicks").exists()


def test_rows_that_a_module_would_scale_are_refused(tmp_path: Path) -> None:
    bags = modules(mode="sum", max_norm=1.0)
    with pytest.raises(WeightsError, match=r"table 'genres': its EmbeddingBag has max_norm=1"):
        published(bags, tmp_path)
    bags["genres"](torch.arange(9)[None])
    assert published(bags, tmp_path).report.imported is not None


def test_weights_that_a_mean_does_not_take_are_refused(tmp_path: Path) -> None:
    samples = generate_samples(SPEC)
    group = samples.groups[0]
    halves = np.full(len(group.values), 0.5, np.float32)
    weighted = replace(samples, groups=(replace(group, weights=halves),))
    with pytest.raises(SpecError, match="table 'genres': the samples have weights"):
        published(modules(mode="mean"), tmp_path, samples=weighted)
    assert published(modules(mode="sum"), tmp_path, samples=weighted).report.imported is not None


def test_weighted_means_of_torchrec_which_torch_cannot_compute_are_not_compared(
    rec: TorchRec, tmp_path: Path
) -> None:
    tables = [Table("mean", 9, 4, ("a",), "MEAN"), Table("sum", 9, 4, ("b",))]
    weights = rec.embeddings.EmbeddingBagCollection(
        tables=rec.collection(tables).embedding_bag_configs(), is_weighted=True
    )
    spec = ModelSpec(
        "clicks",
        (TableSpec("mean", rows=9, dim=4, weighted=True), TableSpec("sum", rows=9, dim=4)),
        DenseSpec({"age": 1}),
    )
    samples = generate_samples(spec)
    group = samples.groups[0]
    halves = np.full(len(group.values), 0.5, np.float32)
    samples = replace(samples, groups=(replace(group, weights=halves),))
    assert published(weights, tmp_path, spec, samples=samples).report.imported is not None
    weights.embedding_bags["sum"] = Doubled(9, 4, mode="sum")
    with pytest.raises(GateError, match="feature 'b', table 'sum'"):
        published(weights, tmp_path, spec, samples=samples)


def test_tensors_are_not_compared_and_it_is_said_how_they_could_be(tmp_path: Path) -> None:
    made = published({n: m.weight for n, m in modules().items()}, tmp_path)
    assert made.report.imported is None
    assert made.compared == NOT_COMPARED
    assert "record_reference" in made.compared and "\n" not in made.compared
    assert "imported" not in json.loads((made.path / "manifest.json").read_text())


def test_the_comparison_is_in_the_manifest_and_the_report(tmp_path: Path) -> None:
    made = published(modules(mode="mean"), tmp_path)
    assert open_artifact(made.path).manifest.imported == made.report.imported
    report = json.loads((made.path / "report.json").read_text())
    assert report["imported"]["compared_with"] == "the trained modules"
    assert made.compared.startswith("import compared with the trained modules on 64 samples")
    assert made.compared[1:] in render_quantization_page(report_from_fields(report))


def recorded(
    weights: dict[str, nn.Module], tower: Tower, samples: ModelInput
) -> CalibrationSamples:
    group, pooled, start = samples.groups[0], [], 0
    for name, lengths in zip(("genres", "users"), torch.from_numpy(group.lengths), strict=True):
        ids = torch.from_numpy(group.values[start : start + int(lengths.sum())])
        start += len(ids)
        pooled.append(weights[name](ids, lengths.cumsum(0) - lengths))
    with torch.no_grad():
        scores = tower(torch.from_numpy(samples.dense[0]), torch.cat(pooled, 1))
    return CalibrationSamples(samples, references={"score": scores.numpy()})


RIGHT = replace(SPEC, tables=(replace(GENRES, pooling="mean"), USERS))


@pytest.mark.parametrize(
    ("tables", "hint"),
    [
        ((replace(GENRES, pooling="sum"), USERS), "come out with table 'genres' pooled by mean"),
        (
            (replace(RIGHT.tables[0], weights="users"), replace(USERS, weights="genres")),
            "the weights of tables 'genres' and 'users' swapped",
        ),
    ],
    ids=["a sum for a mean", "swapped tables"],
)
def test_recorded_scores_tell_a_wrong_import_of_tensors(
    tables: tuple[TableSpec, ...], hint: str, tmp_path: Path
) -> None:
    wrong = replace(SPEC, tables=tables)
    bags, tower = modules(mode="mean"), Tower()
    tensors = {name: module.weight for name, module in bags.items()}
    calibration = recorded(bags, tower, generate_samples(SPEC, 40))
    made = publish(RIGHT, tensors, tower, tmp_path / "models", calibration=calibration)
    found = made.report.imported
    assert found is not None and found.compared_with == "the trained model's recorded scores"
    assert found.max_score_diff < 1e-6 and found.samples == 40
    with pytest.raises(GateError, match=r"output 'score' differs.*reference\.score") as refused:
        publish(wrong, tensors, tower, tmp_path / "models", calibration=calibration)
    assert hint in str(refused.value)


def test_the_bound_is_the_specs(tmp_path: Path) -> None:
    bags, tower = modules(mode="mean"), Tower()
    calibration = recorded(bags, tower, generate_samples(SPEC, 40))
    scores = calibration.references["score"] * np.float32(1.001)
    near = replace(calibration, references={"score": scores})
    with pytest.raises(GateError, match="max_import_diff"):
        publish(RIGHT, bags, tower, tmp_path / "models", calibration=near)
    spec = replace(RIGHT, gate=GateSpec(max_import_diff=0.01))
    found = publish(spec, bags, tower, tmp_path / "models", calibration=near).report.imported
    assert found is not None and found.allowed == 0.01
    assert found.max_score_diff == pytest.approx(0.001, rel=0.05)


@pytest.mark.parametrize("dtype", [None, torch.int8, torch.quint4x2], ids=str)
def test_a_torchrec_model_is_compared(
    dtype: torch.dtype | None, rec: TorchRec, tmp_path: Path
) -> None:
    model = rec.model("DLRM")
    if dtype is not None:
        model = rec.quantized(model, dtype)
    spec, weights, tower = from_torchrec(model, "rec")
    found = publish(spec, weights, tower, tmp_path / "models").report.imported
    assert found is not None and found.max_embedding_diff is not None
    assert max(found.max_embedding_diff, found.max_score_diff) < 1e-5


def test_a_tower_that_is_not_the_torchrec_models_is_refused(rec: TorchRec, tmp_path: Path) -> None:
    spec, weights, tower = from_torchrec(rec.model("DLRM"), "rec")
    with torch.no_grad():
        tower.top.layers[0].weight.copy_(tower.top.layers[0].weight.flip(1))
    with pytest.raises(GateError, match="output 'score' differs from the trained model's"):
        publish(spec, weights, tower, tmp_path / "models")


def test_dense_inputs_in_each_others_place_and_a_sigmoid_are_named(tmp_path: Path) -> None:
    class Numbers(nn.Module):
        def forward(self, age: Tensor, height: Tensor, embeddings: Tensor) -> Tensor:
            return (age - 2 * height).squeeze(1) + embeddings.sum(1)

    spec = ModelSpec("clicks", (GENRES,), DenseSpec({"age": 1, "height": 1}))
    weights = {"genres": torch.randn(9, 4)}
    samples = generate_samples(spec)
    age, height = (torch.from_numpy(array)[:, 0] for array in samples.dense)
    lengths = torch.from_numpy(samples.groups[0].lengths[0])
    pooled = nn.functional.embedding_bag(
        torch.from_numpy(samples.groups[0].values),
        weights["genres"],
        lengths.cumsum(0) - lengths,
        mode="sum",
    ).sum(1)
    recorded = {
        "the dense inputs 'age' and 'height' in each other's place": height - 2 * age + pooled,
        "they are the sigmoid of what the tower returns": torch.sigmoid(age - 2 * height + pooled),
    }
    for hint, scores in recorded.items():
        calibration = CalibrationSamples(samples, references={"score": scores.numpy()})
        with pytest.raises(GateError) as refused:
            publish(spec, weights, Numbers(), tmp_path / "models", calibration=calibration)
        assert hint in str(refused.value)


def test_a_module_that_fails_is_named(tmp_path: Path) -> None:
    class Broken(nn.EmbeddingBag):
        def forward(self, *arguments: object, **named: object) -> Tensor:
            raise RuntimeError("out of order")

    with pytest.raises(WeightsError, match=r"table 'genres': its Broken.*out of order"):
        published(modules(Broken), tmp_path)
