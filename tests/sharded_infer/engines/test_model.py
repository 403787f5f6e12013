from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.stored_rows import decode
from quant.sources.table_weight import TableWeight
from quant.sources.weight_source import TensorSource
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import ArtifactError
from sharded_infer.publishing.publication import publish
from sharded_infer.quality.fp32_model import Fp32Model
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, ServingSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.tower import Tower
from tests.reference.row_encoding import encode

BACKENDS = {"int8": "native", "bf16": "native"}

Arrays = dict[str, NDArray[np.generic]]
TOPOLOGIES = ("cpu:1", "cpu:2", "cpu:3x0.55KB")
SAMPLES = 200


@pytest.fixture(scope="module")
def model(published_version: Path) -> Model:
    return open_model(published_version)


def request_of(spec: ModelSpec, batch: int, seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    ids = {f.name: generator.integers(0, f.table.rows, (batch, 2)) for f in spec.features}
    widths = spec.dense.inputs.items()
    return ids | {n: generator.standard_normal((batch, w), dtype=np.float32) for n, w in widths}


def assert_same(
    got: dict[str, NDArray[np.float32]], wanted: dict[str, NDArray[np.float32]]
) -> None:
    assert list(got) == list(wanted) == ["click", "rating"]
    for name, scores in wanted.items():
        assert np.array_equal(got[name], scores)


def weights_of(tensors: dict[str, Tensor]) -> dict[str, TableWeight]:
    source = TensorSource(tensors)
    return {name: TableWeight(source, name, *tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_scores_are_those_of_the_stored_rows(
    published_version: Path,
    trained_weights: dict[str, Tensor],
    trained_tower: nn.Module,
    topology: str,
) -> None:
    # All that is lost is lost in storing: nothing more than fp32 rounding in serving.
    model = open_model(published_version, topology=topology)
    formats = {table.name: model.spec.row_format(table) for table in model.spec.tables}
    rows = {
        name: decode(formats[name], encode(formats[name], weight), weight.shape[1])
        for name, weight in trained_weights.items()
    }
    model_input = generate_samples(model.spec, SAMPLES, seed=9)
    wanted = Fp32Model(model.spec, weights_of(rows), trained_tower).scores(model_input)
    for name, scores in model.run(model_input).items():
        np.testing.assert_allclose(scores, wanted[name], rtol=1e-5, atol=1e-5)


def test_a_batch_of_several_pieces_scores_as_its_parts_do(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    run = Tower.__call__

    def counted(tower: Tower, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        ran.append(len(embeddings))
        return run(tower, dense, embeddings)

    monkeypatch.setattr(Tower, "__call__", counted)
    samples = generate_samples(model.spec, 1100, seed=3)
    whole = model.run(samples)
    assert sum(ran) == model.engine.run_size(1100) and len(ran) > 2
    parts = [model.run(samples.samples(at, at + 100)) for at in range(0, 1100, 100)]
    for name, scores in whole.items():
        alone = np.concatenate([part[name] for part in parts])
        np.testing.assert_allclose(scores, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_nan_that_a_model_takes_gives_nan_to_its_sample_alone(
    precision: str, tmp_path: Path
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        tower = _Wide()
    spec = ModelSpec(
        name="taking",
        tables=(TableSpec("item", 20, 64),),
        dense=DenseSpec({"dense": 13}),
        tower=TowerSpec(precision=Precision(precision)),
        serving=ServingSpec(non_finite="pass"),
    )
    weights = {"item": torch.randn(20, 64, generator=torch.Generator().manual_seed(1))}
    samples = generate_samples(spec, 300, seed=2)
    published = publish(spec, weights, tower, tmp_path, calibration=CalibrationSamples(samples))
    opened = open_model(published.path)
    inputs = request_of(spec, 4)
    expected = opened.predict(inputs)["score"]
    inputs["dense"][1, 0] = np.nan
    by_dense = opened.predict(inputs)["score"]
    assert np.isnan(by_dense).tolist() == [False, True, False, False]
    assert np.array_equal(by_dense[[0, 2, 3]], expected[[0, 2, 3]])
    weighted = request_of(spec, 4) | {"item.weights": np.ones((4, 2), np.float32)}
    weighted["item.weights"][2, 1] = np.nan
    assert np.isnan(opened.predict(weighted)["score"]).tolist() == [False, False, True, False]


class _Wide(nn.Module):
    """Products before ReLUs: oneDNN's own would make 0 of NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.last = nn.Linear(64, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        hidden = self.top(torch.cat([self.bottom(dense), embeddings], 1))
        scores: Tensor = self.last(hidden).squeeze(1).sigmoid()
        return scores


def test_threads_that_predict_at_once_agree(model: Model) -> None:
    requests = [request_of(model.spec, size, seed=size) for size in range(1, 7)]
    alone = [model.predict(inputs) for inputs in requests]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(model.predict, requests * 10))
    for index, scores in enumerate(together):
        assert_same(scores, alone[index % len(alone)])


def test_a_towers_signature_says_what_kernels_it_needs(
    model: Model, published_version: Path, trained_spec: ModelSpec, tmp_path: Path
) -> None:
    assert open_model(published_version).tower_signature() == model.tower_signature()
    weights = {t.name: torch.zeros(t.rows, t.dim) for t in trained_spec.tables}

    def published(width: int) -> Model:
        tower = Wider(width)
        return open_model(publish(trained_spec, weights, tower, tmp_path / str(width)).path)

    signatures = [published(width).tower_signature() for width in (16, 16, 24)]
    assert signatures[0] == signatures[1] != signatures[2]


class Wider(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.LazyLinear(width)
        self.click, self.rating = nn.Linear(width, 1), nn.Linear(width, 3)
        self.hidden(torch.zeros(1, 35))

    def forward(self, user_age: Tensor, context: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        hidden = self.hidden(torch.cat([user_age, context, embeddings], dim=1)).relu()
        return {"click": self.click(hidden).squeeze(1), "rating": self.rating(hidden)}


def test_golden_requests_score_as_the_manifest_says(published_version: Path) -> None:
    for topology in TOPOLOGIES:
        model = open_model(published_version, topology=topology)
        said = model.artifact.manifest.golden.max_score_diff
        assert check_golden(model) == pytest.approx(said, rel=1e-3)


def test_every_byte_is_verified_unless_told_otherwise(published_version: Path) -> None:
    told: Counter[str] = Counter()
    totals = set()

    def progress(what: str, done: int, total: int) -> None:
        told[what] += 1
        totals.add((done == total, total))

    model = open_model(published_version, progress=progress)
    wanted = sum(record.bytes for record in model.artifact.manifest.files.values())
    assert told == {"verifying": len(model.artifact.manifest.files)}
    assert (True, wanted) in totals
    open_model(published_version, verify=False, progress=progress)
    assert told.total() == len(model.artifact.manifest.files)


def test_a_missing_file_is_refused_even_unverified(version_copy: Path) -> None:
    for name in ("tower.pt2", "plans/cpu-1.json", "tables/int8-00000.safetensors"):
        path = version_copy / name
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(ArtifactError, match=path.name):
            open_model(version_copy, verify=False)
        path.write_bytes(content)
    open_model(version_copy)


@pytest.mark.parametrize("form", ["lists", "tensors", "float64", "frame", "rows", "labelled"])
def test_the_data_of_a_notebook_scores_as_a_request_does(form: str, model: Model) -> None:
    inputs = request_of(model.spec, 5)
    frame = pd.DataFrame({name: array.tolist() for name, array in inputs.items()})
    data: dict[str, Callable[[], object]] = {
        "lists": lambda: {name: array.tolist() for name, array in inputs.items()},
        "tensors": lambda: {name: torch.from_numpy(array) for name, array in inputs.items()},
        "float64": lambda: {
            n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()
        },
        "frame": lambda: frame,
        "rows": lambda: frame.to_dict("records"),
        "labelled": lambda: frame.assign(label=1, **{"reference.click": 0.5}),
    }
    assert_same(model.predict(data[form]()), model.predict(inputs))


def test_weights_and_padding_of_a_notebook_are_those_of_a_request(model: Model) -> None:
    inputs = request_of(model.spec, 3)
    name = model.spec.features[0].name
    ids, scales = inputs[name], np.array([[0.5, 2], [3, 1], [1, 1]], np.float32)
    jagged = {
        **inputs,
        name: ids.reshape(-1)[[0, 1, 2]],
        f"{name}.lengths": np.array([2, 1, 0], np.int32),
        f"{name}.weights": scales.reshape(-1)[[0, 1, 2]],
    }
    padded = {
        **inputs,
        f"{name}.lengths": torch.tensor([2, 1, 0]),
        f"{name}.weights": torch.from_numpy(scales),
    }
    assert_same(model.predict(padded), model.predict(jagged))
