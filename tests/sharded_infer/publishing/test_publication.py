import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer import CalibrationSamples, Precision, generate_samples, open_model, publish
from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.artifacts.manifest import FileRecord, dump_manifest
from sharded_infer.artifacts.mapped_tables import table_pieces
from sharded_infer.errors import (
    GateError,
    NotFoundError,
    PlanError,
    RequestError,
    ShardedInferError,
    SpecError,
    TowerError,
    WeightsError,
)
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.planning.plan import check_plan
from sharded_infer.specs.model_spec import DenseSpec, GateSpec, ModelSpec, TableSpec, TowerSpec
from tests.reference.row_encoding import encode
from tests.support.part_model import Scorer

Weights = dict[str, Tensor]


TINY = ModelSpec(
    "tiny",
    (
        TableSpec("ads", rows=9, dim=4, format=RowFormat.INT8),
        TableSpec("user", rows=5, dim=3, format=RowFormat.BF16),
        TableSpec("flag", rows=1, dim=1, format=RowFormat.INT8),
    ),
)


@pytest.fixture
def weights() -> Weights:
    generator = torch.Generator().manual_seed(0)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TINY.tables}


def content_of(path: Path) -> dict[str, str]:
    return {
        entry.relative_to(path).as_posix(): hashlib.sha256(entry.read_bytes()).hexdigest()
        for entry in path.rglob("*")
        if entry.is_file()
    }


def test_tables_hold_the_encoded_rows(weights: Weights, tmp_path: Path) -> None:
    published = publish(TINY, weights, Scorer(), tmp_path / "models")
    pieces = table_pieces(open_artifact(published.path))
    for table in TINY.tables:
        (piece,) = pieces[table.name]
        stored = encode(TINY.row_format(table), weights[table.name]).view(-1)
        start = piece.byte_offset
        assert torch.equal(piece.memory[start : start + len(stored)], stored)


def test_a_version_holds_what_its_manifest_says(
    published_version: Path, trained_spec: ModelSpec
) -> None:
    artifact = open_artifact(published_version)
    manifest = artifact.manifest
    assert verify_files(artifact) == sum(record.bytes for record in manifest.files.values())
    formats = {table.name: table.row_format for table in manifest.tables}
    resolved = tuple(
        replace(t, format=formats[t.name], pooling=t.pooling or "sum") for t in trained_spec.tables
    )
    assert manifest.model_spec() == replace(trained_spec, tables=resolved)
    assert (manifest.model, manifest.version) == ("small", 1)
    assert [(o.name, o.width) for o in manifest.tower.outputs] == [("click", None), ("rating", 3)]
    tables = [f"tables/{row_format}-00000.safetensors" for row_format in ("bf16", "int8")]
    plans = [f"plans/cpu-{name}.json" for name in ("1", "2", "3x0.55KB")]
    assert set(manifest.files) == {
        *("golden.safetensors", "report.json", "tower.pt2"),
        *(*plans, *tables, *(f"{name}.blocks" for name in tables)),
    }
    assert manifest.golden.samples == 64
    assert 0 < manifest.golden.max_score_diff < 0.05


def test_a_plan_is_exported_for_every_topology(published_version: Path) -> None:
    artifact = open_artifact(published_version)
    assert list(artifact.manifest.plans) == ["cpu:1", "cpu:2", "cpu:3x0.55KB"]
    shards = {}
    for topology in artifact.manifest.plans:
        plan = artifact.plan(topology)
        assert plan.topology.name == topology
        check_plan(plan, artifact.manifest.stored_tables())
        shards[topology] = len(plan.shards)
    # Small ranks cannot hold every table whole.
    assert shards["cpu:1"] == 4 < shards["cpu:3x0.55KB"]
    assert artifact.plan() == artifact.plan("cpu:1")
    with pytest.raises(NotFoundError, match="no plan for topology 'cpu:4'; it was published for"):
        artifact.plan("cpu:4")


def test_the_same_model_makes_the_same_files(weights: Weights, tmp_path: Path) -> None:
    versions = [content_of(publish(TINY, weights, Scorer(), tmp_path).path) for _ in range(2)]
    for files in versions:
        del files["manifest.json"]
    assert versions[0] == versions[1]


def test_progress_reaches_the_end_of_every_step(weights: Weights, tmp_path: Path) -> None:
    steps = defaultdict[str, list[tuple[int, int]]](list)

    def tell(what: str, done: int, total: int) -> None:
        steps[what].append((done, total))

    publish(TINY, weights, Scorer(), tmp_path, progress=tell)
    assert list(steps) == ["exporting the tower", "quantizing", "scoring golden requests"]
    for told in steps.values():
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1]
    assert steps["quantizing"][-1] == (208, 208)


def test_given_samples_are_the_golden_requests(weights: Weights, tmp_path: Path) -> None:
    samples = make_input(TINY, {"ads": np.array([3, 8]), "user": np.array([[4], [0]])})
    path = publish(TINY, weights, Scorer(), tmp_path, samples=samples).path
    assert open_artifact(path).manifest.golden.samples == 2
    scores = open_model(path).run(samples)["score"]
    wanted = (weights["ads"][[3, 8]].sum(1) + weights["user"][[4, 0]].sum(1)).numpy()
    np.testing.assert_allclose(scores, wanted, atol=0.05)


def fails_to_publish(
    error: type[ShardedInferError],
    words: str,
    tmp_path: Path,
    weights: Weights,
    *,
    spec: ModelSpec = TINY,
    tower: nn.Module | None = None,
    **options: Any,
) -> None:
    models = tmp_path / "models"
    (models / "tiny" / "1").mkdir(parents=True)
    (models / "tiny" / "1" / "manifest.json").write_text("{}")
    before = content_of(models)
    with pytest.raises(error, match=words):
        publish(spec, weights, tower or Scorer(), models, **options)
    assert content_of(models) == before
    assert [entry.name for entry in (models / "tiny").iterdir()] == ["1"]


def test_samples_of_weights_that_are_no_numbers_are_refused(
    weights: Weights, tmp_path: Path
) -> None:
    samples = [{"ads": [3, 8], "ads.weights": [1, float("nan")], "user": 4}]
    for name in ("samples", "calibration"):
        words = "weights of 'ads': expected finite numbers, got nan"
        fails_to_publish(RequestError, words, tmp_path / name, weights, **{name: samples})


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.layers(embeddings).squeeze(1)
        return scores


def int8_spec(**gate: float) -> ModelSpec:
    return replace(TINY, tower=TowerSpec(precision=Precision.INT8), gate=GateSpec(**gate))


def test_an_int8_tower_is_calibrated_on_the_samples(weights: Weights, tmp_path: Path) -> None:
    samples = generate_samples(TINY, 300)
    published = publish(int8_spec(), weights, drawn(Deep), tmp_path, samples=samples)
    assert published.max_score_diff < 0.02
    assert open_artifact(published.path).manifest.tower.precision is Precision.INT8
    # Its integers come from what the samples look like: calibration samples go before golden ones.
    quiet = generate_samples(TINY, 300, seed=1)
    options: dict[str, Any] = {"samples": samples, "calibration": CalibrationSamples(quiet)}
    other = publish(int8_spec(), weights, drawn(Deep), tmp_path, **options)
    assert content_of(other.path)["tower.pt2"] != content_of(published.path)["tower.pt2"]


def in_precision(precision: Precision, max_score_diff: float = 0.05) -> ModelSpec:
    gate = GateSpec(max_score_diff=max_score_diff)
    tables = tuple(replace(table, format=RowFormat.FP32) for table in TINY.tables)
    return replace(TINY, tables=tables, tower=TowerSpec(precision=precision), gate=gate)


def drawn(kind: type[Deep]) -> Deep:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return kind()


def test_a_tf32_tower_is_stored_as_fp32_judged_as_tf32(weights: Weights, tmp_path: Path) -> None:
    tower = drawn(Deep)
    fp32, tf32 = (
        publish(in_precision(precision), weights, tower, tmp_path)
        for precision in (Precision.FP32, Precision.TF32)
    )
    assert content_of(tf32.path)["tower.pt2"] == content_of(fp32.path)["tower.pt2"]
    assert open_artifact(tf32.path).manifest.tower.precision is Precision.TF32
    # Opened on a processor it scores in fp32: the difference is none that this has.
    assert fp32.max_score_diff < 5e-6 < tf32.max_score_diff < 5e-3
    assert open_artifact(tf32.path).manifest.golden.max_score_diff == tf32.max_score_diff


def test_products_beyond_fp16_are_refused_with_the_reason(weights: Weights, tmp_path: Path) -> None:
    class Loud(Deep):
        """Numbers beyond 65504 between its layers, and ordinary ones outside."""

        def forward(self, embeddings: Tensor) -> Tensor:
            return super().forward(embeddings * 3e5) / 3e5

    spec = in_precision(Precision.BF16, 0.2)
    publish(spec, weights, drawn(Loud), tmp_path / "bf16")
    words = (
        r"by inf, the spec allows 0.2.*; the fp16 tower by itself: largest inf "
        r"\(products beyond 65504 are infinite in fp16, not in bf16 and tf32\)$"
    )
    spec = in_precision(Precision.FP16, 0.2)
    fails_to_publish(GateError, words, tmp_path, weights, spec=spec, tower=drawn(Loud))


def test_an_unchanged_model_keeps_its_plan_and_a_changed_one_does_not(
    trained_spec: ModelSpec,
    trained_weights: dict[str, torch.Tensor],
    trained_tower: nn.Module,
    tmp_path: Path,
) -> None:
    parts = (trained_spec, trained_weights, trained_tower, tmp_path)
    first = publish(*parts, topologies=("cpu:2", "cpu:3"))
    # A plan of the same key that no planner would make: if it comes back, it was kept.
    path = first.path / "plans" / "cpu-2.json"
    plan = json.loads(path.read_text())
    for shard in plan["shards"]:
        shard["rank"] = 0
    path.write_text(json.dumps(plan))
    manifest = open_artifact(first.path).manifest
    content = path.read_bytes()
    record = FileRecord(len(content), hashlib.sha256(content).hexdigest())
    files = {**manifest.files, "plans/cpu-2.json": record}
    (first.path / "manifest.json").write_bytes(dump_manifest(replace(manifest, files=files)))
    second = publish(*parts, topologies=("cpu:2",))
    kept = json.loads((second.path / "plans" / "cpu-2.json").read_text())["shards"]
    assert {shard["rank"] for shard in kept} == {0}
    other = publish(*parts, topologies=("cpu:2",), batch=7)
    fresh = json.loads((other.path / "plans" / "cpu-2.json").read_text())
    assert fresh["key"] != plan["key"] and {s["rank"] for s in fresh["shards"]} == {0, 1}


@pytest.mark.parametrize("row_format", RowFormat)
def test_a_model_of_every_format_is_published_and_scores_like_fp32(
    row_format: RowFormat,
    trained_spec: ModelSpec,
    trained_weights: dict[str, torch.Tensor],
    trained_tower: nn.Module,
    tmp_path: Path,
) -> None:
    tables = tuple(replace(table, format=row_format) for table in trained_spec.tables)
    spec = replace(trained_spec, tables=tables, gate=GateSpec(max_score_diff=10.0))
    published = publish(spec, trained_weights, trained_tower, tmp_path, topologies=("cpu:2",))
    # Rows are normal, scores of size 1: each format's step, over a dozen rows of a sample.
    allowed = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 0.05, "int8": 0.05, "fp8": 0.5, "int4": 1.0}
    assert published.max_score_diff < allowed.get(row_format, 5.0)
    assert (published.max_score_diff > 1e-5) == (row_format is not RowFormat.FP32)
    assert set(open_model(published.path).engine.backends) == {row_format}


class Mixing(nn.Module):
    def __init__(self, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.way = way

    def forward(self, embeddings: Tensor) -> Tensor:
        return 0.1 * self.way(embeddings.sum(1)).tanh()


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x / (1.0 + x.abs().amax(0)),
        lambda x: x.cumsum(0),
        lambda x: x.flip(0),
        lambda x: x + 1e-4 * x.mean(),
        lambda x: (x - x.mean(0) - 8).sigmoid(),
        lambda x: x / x.shape[0],
    ],
    ids=["largest", "running sum", "turned round", "a little", "small scores", "batch size"],
)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16], ids=str)
def test_a_tower_that_mixes_the_samples_of_a_batch_is_refused_whatever_the_gate_allows(
    way: Callable[[Tensor], Tensor], precision: Precision, weights: Weights, tmp_path: Path
) -> None:
    spec = replace(TINY, gate=GateSpec(1e6), tower=replace(TINY.tower, precision=precision))
    words = r"model 'tiny': a sample's score 'score' .* by \S+\d, .*tower mixes the samples"
    fails_to_publish(GateError, words, tmp_path, weights, spec=spec, tower=Mixing(way))


def test_a_tower_that_mixes_only_the_samples_of_real_requests_is_refused(
    weights: Weights, tmp_path: Path
) -> None:
    class Timestamps(nn.Module):
        def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
            # Constant for generated inputs.
            recent = torch.relu(dense[:, 0] / 1e9 - 1)
            return embeddings.sum(1) + recent - recent.mean(0)

    spec = replace(TINY, dense=DenseSpec({"dense": 1}))
    samples = generate_samples(spec)
    publish(spec, weights, Timestamps(), tmp_path / "generated")
    samples.dense[0][:] = np.random.default_rng(0).uniform(1.6e9, 1.8e9, samples.dense[0].shape)
    words = "a batch of several follows the others', .*tower mixes the samples"
    fails_to_publish(
        GateError, words, tmp_path, weights, spec=spec, tower=Timestamps(), samples=samples
    )


def outside() -> ModelInput:
    samples = generate_samples(TINY)
    samples.groups[0].values[0] = 9
    return samples


OTHER_OUTPUTS = replace(TINY, tower=TowerSpec(outputs=("click", "buy")))
WIDE = replace(TINY, tables=(*TINY.tables[:2], replace(TINY.tables[2], dim=2)))
REFUSED: list[tuple[dict[str, Any], type[ShardedInferError], str]] = [
    ({"ads": torch.zeros(8, 4)}, WeightsError, r"'ads': .* says 9 rows of dim 4, .* is \[8, 4\]"),
    ({"ads": torch.zeros(9, 5)}, WeightsError, r"table 'ads': .* is \[9, 5\]"),
    ({"user": torch.zeros(5, 3, dtype=torch.int64)}, WeightsError, "table 'user': .* torch.int64"),
    ({"flag": torch.tensor([[torch.nan]])}, WeightsError, "table 'flag', row 0: holds NaN"),
    ({"user": torch.full((5, 3), torch.inf)}, WeightsError, "table 'user', row 0: holds NaN or in"),
    ({"ads": torch.full((9, 4), 1e6)}, WeightsError, "'ads', row 0: .*fp16's range .* as int8"),
    ({"spec": OTHER_OUTPUTS}, TowerError, "expected the outputs"),
    (
        {"spec": WIDE, "flag": torch.zeros(1, 2), "tower": Deep()},
        *(TowerError, r"embeddings 9: ads 4, user 3, flag 2\) fails on inputs of shapes"),
    ),
    (
        {"tower": Mixing(lambda x: x + (x / x).mean(0))},
        *(
            GateError,
            "in a batch of several differs from its score alone, by inf, .*tower mixes the sam",
        ),
    ),
    ({"spec": int8_spec(), "tower": Deep()}, SpecError, "int8: needs samples of real requests"),
    (
        {"spec": replace(TINY, gate=GateSpec(max_score_diff=1e-9))},
        GateError,
        r"model 'tiny': .* differs from the fp32 model's by 0\.\d+, the spec allows 1e-09 .*; the "
        r"tables that contribute most, each by itself: ads \(mean 0\.\d+, largest 0\.\d+\), user",
    ),
    (
        {
            "spec": int8_spec(max_score_diff=1e-9),
            "tower": Deep(),
            "samples": generate_samples(TINY, 100),
        },
        *(GateError, r"contribute most.*; the int8 tower by itself: largest 0\.\d+$"),
    ),
    ({"samples": outside()}, RequestError, "feature 'ads', sample .*: id 9 is outside"),
    ({"topologies": ()}, SpecError, "topologies: expected at least one"),
    ({"topologies": ("moon:1",)}, PlanError, "unknown device 'moon'"),
    ({"topologies": ("cpu:1", "cpu:2x0.04KB")}, PlanError, "'cpu:2x0.04KB': .* 2. bytes too many"),
]


@pytest.mark.parametrize(("changes", "error", "words"), REFUSED)
def test_what_cannot_be_published_leaves_the_repository_as_it_was(
    changes: dict[str, Any],
    error: type[ShardedInferError],
    words: str,
    weights: Weights,
    tmp_path: Path,
) -> None:
    """What is named as a table is its weight."""
    options = {name: value for name, value in changes.items() if name not in weights}
    changed = {name: changes.get(name, weight) for name, weight in weights.items()}
    fails_to_publish(error, words, tmp_path, changed, **options)
