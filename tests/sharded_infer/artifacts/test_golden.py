import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from sharded_infer.artifacts.golden import (
    GoldenRequests,
    generate_samples,
    load_golden,
    save_golden,
)
from sharded_infer.errors import ArtifactError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

SAMPLES = 6


def golden_of(spec: ModelSpec, *, weighted: bool = False) -> GoldenRequests:
    model_input = generate_samples(spec, SAMPLES)
    if weighted:
        (group,) = model_input.groups
        weights = np.arange(len(group.values), dtype=np.float32)
        group = JaggedBatch(group.features, group.values, group.lengths, weights)
        model_input = ModelInput(SAMPLES, (group,), model_input.dense)
    scores = {
        "click": np.linspace(0, 1, SAMPLES, dtype=np.float32),
        "rating": np.ones((SAMPLES, 3), np.float32),
    }
    return GoldenRequests(model_input, scores)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "golden.safetensors"


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_golden_requests_are_read_back(trained_spec: ModelSpec, path: Path, weighted: bool) -> None:
    golden = golden_of(trained_spec, weighted=weighted)
    save_golden(path, trained_spec, golden)
    loaded = load_golden(path, trained_spec)
    (group,), (kept,) = golden.model_input.groups, loaded.model_input.groups
    assert kept.features == group.features
    assert np.array_equal(kept.values, group.values)
    assert np.array_equal(kept.lengths, group.lengths)
    assert (kept.weights is not None) == weighted
    assert group.weights is None or np.array_equal(kept.weights, group.weights)
    assert loaded.model_input.batch_size == SAMPLES
    for dense, wanted in zip(loaded.model_input.dense, golden.model_input.dense, strict=True):
        assert np.array_equal(dense, wanted)
    assert list(loaded.scores) == ["click", "rating"]
    for name, scores in golden.scores.items():
        assert np.array_equal(loaded.scores[name], scores)


def test_ids_are_drawn_whose_rows_all_tables_have() -> None:
    tables = (
        TableSpec("quotient", 10, 1, features=("id",), id_steps={"id": (("divide", 5),)}),
        TableSpec("remainder", 5, 1, features=("id",), id_steps={"id": (("remainder", 5),)}),
        TableSpec("offset", 9, 1, id_steps={"offset": (("add", 20),)}),
        TableSpec("shop", 9, 1),
    )
    spec = ModelSpec("m", tables)
    drawn = generate_samples(spec, 200)
    assert not drawn.ids_checked
    ids, again, offsets, _ = np.split(
        drawn.groups[0].values, np.cumsum(drawn.groups[0].lengths.sum(1))[:-1]
    )
    assert set(ids.tolist()) == set(range(50)) == set(again.tolist())
    assert set(offsets.tolist()) == set(range(-20, -11))
    InputPolicy(spec).apply(drawn)
    # Without an id that both have, they are rows.
    apart = replace(tables[1], id_steps={"id": (("add", -50),)})
    drawn = generate_samples(ModelSpec("m", (tables[0], apart)), 200)
    assert drawn.ids_checked and drawn.are_rows
    assert set(drawn.groups[0].values.tolist()) == set(range(5))


def test_golden_requests_are_as_readable_as_others(trained_spec: ModelSpec, path: Path) -> None:
    # A server often runs as another user than the publisher.
    save_golden(path, trained_spec, golden_of(trained_spec))
    path.with_name("plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(path.with_name("plain").stat().st_mode)


def test_samples_lie_inside_the_tables_and_repeat_with_their_seed(trained_spec: ModelSpec) -> None:
    first, again, other = (generate_samples(trained_spec, 500, seed) for seed in (3, 3, 4))
    (group,) = first.groups
    assert group.lengths.shape == (len(trained_spec.features), 500)
    assert set(np.unique(group.lengths)) == {0, 1, 2, 3}
    ends = np.cumsum(group.lengths.sum(axis=1))[:-1]
    for feature, ids in zip(trained_spec.features, np.split(group.values, ends), strict=True):
        assert (ids.min(), ids.max()) == (0, feature.table.rows - 1)
    assert [array.shape for array in first.dense] == [(500, 1), (500, 4)]
    assert np.array_equal(again.groups[0].values, group.values)
    assert np.array_equal(again.dense[1], first.dense[1])
    assert not np.array_equal(other.dense[1], first.dense[1])


SHARED = ModelSpec(
    "shared",
    (
        TableSpec("wide", rows=50, dim=1, features=("user", "item")),
        TableSpec("deep", rows=8, dim=2, features=("user",)),
    ),
)


def test_samples_of_a_feature_lie_inside_all_its_tables_and_are_kept_once(path: Path) -> None:
    samples = generate_samples(SHARED, 500)
    user, item, again = (samples.groups[0].select([feature]) for feature in range(3))
    assert np.array_equal(user.values, again.values) and user.values.max() == 7
    assert np.array_equal(user.lengths, again.lengths) and item.values.max() == 49
    save_golden(path, SHARED, GoldenRequests(samples, {"score": np.ones(500, np.float32)}))
    assert load_file(path)["sparse.lengths"].shape == (2, 500)
    kept = load_golden(path, SHARED).model_input.groups[0]
    assert np.array_equal(kept.values, samples.groups[0].values)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("sparse.values", None, "sparse.values"),
        ("score.rating", None, "score.rating"),
        ("sparse.values", np.zeros(3, np.int64), "values"),
        ("sparse.values", np.zeros(0, np.float32), "values"),
        ("sparse.lengths", np.zeros((4, SAMPLES), np.int64), "lengths"),
        ("sparse.lengths", np.full((5, SAMPLES), 2**62), "lengths"),
        ("sparse.weights", np.zeros(3, np.float32), "weights"),
        ("dense.context", np.zeros((SAMPLES, 3), np.float32), "dense.context"),
        ("dense.context", np.zeros((SAMPLES - 1, 4), np.float32), "dense.context"),
        ("score.click", np.zeros(SAMPLES + 1, np.float32), "score.click"),
        ("score.rating", np.zeros((SAMPLES, 3, 1), np.float32), "score.rating"),
    ],
)
def test_golden_requests_of_another_shape_are_refused_by_name(
    trained_spec: ModelSpec, path: Path, name: str, array: NDArray[np.generic] | None, words: str
) -> None:
    save_golden(path, trained_spec, golden_of(trained_spec))
    tensors = load_file(path)
    if array is None:
        del tensors[name]
    else:
        tensors[name] = array
    save_file(tensors, path)
    with pytest.raises(ArtifactError, match=f"{path}: not golden requests of 'small': .*{words}"):
        load_golden(path, trained_spec)
