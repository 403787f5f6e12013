import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.golden import load_golden
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import RequestError, SpecError, WeightsError
from sharded_infer.importing.id_maps.id_map_source import HashedRows, SharedRows
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.support.raw_ids import (
    SPEC,
    TOPOLOGIES,
    Arrays,
    RawModel,
    Sum,
    made_maps,
    publish_raw,
    raw_request,
    source_of,
)

ITEM = TableSpec("item", rows=4, dim=2)
TINY = ModelSpec("tiny", (ITEM,), dense=SPEC.dense)
WEIGHTS = {"item": torch.randn(4, 2)}
KNOWN = {10**12: 3, -5: 0, 77: 1}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> RawModel:
    return publish_raw(tmp_path_factory.mktemp("raw"))


def pooled(model: Model, inputs: Arrays) -> torch.Tensor:
    asked = make_input(model.spec, inputs)
    return model.engine.embeddings(asked)[: asked.batch_size]


def assert_equal(model: Model, plain: Model, requests: tuple[Arrays, Arrays]) -> None:
    found, wanted = (
        pooled(one, inputs) for one, inputs in zip((model, plain), requests, strict=True)
    )
    assert torch.equal(found, wanted)
    assert np.array_equal(model.predict(requests[0])["score"], plain.predict(requests[1])["score"])


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("memory", [TableMemory.MAP, TableMemory.HUGE])
def test_every_plan_gives_what_a_dict_gives(
    raw: RawModel, topology: str, memory: TableMemory
) -> None:
    model = open_model(raw.path, topology=topology, memory=memory)
    plain = open_model(raw.plain, topology=topology, memory=memory)
    for seed, batch in enumerate((1, 2, 9, 33)):
        assert_equal(model, plain, raw_request(raw, batch, seed))
        weighted = ("clicked", "shop")
        assert_equal(model, plain, raw_request(raw, batch, seed, weighted=weighted))
        shared = ("user_id", "bought", "shop")
        assert_equal(model, plain, raw_request(raw, batch, seed, shared=shared))


def test_simulated_gpus_give_what_the_host_gives(tmp_path: Path) -> None:
    raw = publish_raw(tmp_path, topologies=("h100:1",))
    model = open_model(raw.path, devices=DeviceChoice(simulated=True))
    plain = open_model(raw.plain, devices=DeviceChoice(simulated=True))
    inputs, rows = raw_request(raw, 5, 2)
    assert np.allclose(model.predict(inputs)["score"], plain.predict(rows)["score"], rtol=1e-6)


def test_unknown_ids_are_counted_by_table(raw: RawModel) -> None:
    model = open_model(raw.path)
    inputs, _ = raw_request(raw, 50, 4)
    checked = InputPolicy(model.spec, model.id_maps).apply(make_input(model.spec, inputs))
    wanted = {
        table.name: sum(
            int(one) not in raw.maps[table.name]
            for name in table.features or (table.name,)
            for one in inputs[name].tolist()
        )
        for table in SPEC.mapped_tables
    }
    assert all(wanted[name] for name in ("item", "shop", "ad"))
    countries = inputs["country"]
    outside = int(((countries < 0) | (countries >= 7)).sum())
    assert outside and checked.ids_outside == sum(wanted.values()) + outside
    assert dict(checked.ids_unknown) == {name: n for name, n in wanted.items() if n}
    assert InputPolicy(model.spec, model.id_maps).apply(checked) is checked


@pytest.mark.parametrize("strange", [5, 2**62, -(2**63) + 1])
def test_an_unknown_id_is_refused_by_feature_sample_id_and_table(
    raw: RawModel, strange: int
) -> None:
    model = open_model(raw.path)
    inputs, _ = raw_request(raw, 3, 0)
    known = next(iter(raw.maps["user"]))
    inputs["user_id"] = np.array([known, known, strange])
    inputs["user_id.lengths"] = np.array([1, 0, 2])
    words = f"feature 'user_id', sample 2: id {strange} is not in the id map of table 'user'"
    with pytest.raises(RequestError, match=words):
        model.predict(inputs)


def test_golden_requests_have_raw_ids_that_are_known(raw: RawModel) -> None:
    model = open_model(raw.path)
    golden = load_golden(raw.path / "golden.safetensors", model.spec).model_input
    assert not golden.ids_checked
    checked = InputPolicy(model.spec, model.id_maps).apply(golden)
    assert checked.ids_unknown == () and len(golden.groups[0].values) > 100
    assert np.abs(golden.groups[0].values).max() > 2**40


def test_a_version_with_id_maps_has_format_2_and_any_other_has_1(raw: RawModel) -> None:
    manifest = open_artifact(raw.path).manifest
    assert manifest.format_version == 2
    assert manifest.id_maps == {n: f"id_maps/{n}.index" for n in ("user", "item", "shop", "ad")}
    document = json.loads((raw.plain / "manifest.json").read_text())
    assert document["format_version"] == 1 and "id_maps" not in document
    assert "id_map" not in document["spec"]["tables"][0]


def test_the_fp32_model_is_compared_on_calibration_samples_with_raw_ids(tmp_path: Path) -> None:
    spec = replace(TINY, tables=(replace(ITEM, id_map=IdMapSpec("zero")),))
    samples = {
        "item": np.array([[77, 10**12], [-5, 4], [4, 4]]),
        "age": np.zeros((3, 1), np.float32),
    }
    calibration = CalibrationSamples(make_input(spec, samples))
    sources = {"item": source_of(KNOWN)}
    made = publish(spec, WEIGHTS, Sum(), tmp_path, id_maps=sources, calibration=calibration)
    assert made.report.calibration is not None
    assert made.report.calibration.mixes[0].max_score_diff < 0.01
    golden = load_golden(made.path / "golden.safetensors", open_model(made.path).spec)
    assert golden.model_input.groups[0].values.tolist() == [77, 10**12, -5, 4, 4, 4]
    wanted = torch.stack([WEIGHTS["item"][[1, 3]].sum(0), WEIGHTS["item"][0], torch.zeros(2)])
    assert np.allclose(golden.scores["score"], wanted.mean(1).numpy())


@pytest.mark.parametrize(
    ("unknown", "said", "wanted"),
    [(None, None, "error"), ("zero", None, "zero"), ("zero", "error", "error")],
)
def test_what_unknown_means_is_the_specs_word_or_the_sources(
    tmp_path: Path, unknown: object, said: object, wanted: str
) -> None:
    source = replace(source_of(KNOWN), unknown=unknown)  # type: ignore[arg-type]
    table = replace(ITEM, id_map=IdMapSpec(said) if said else None)  # type: ignore[arg-type]
    spec = replace(TINY, tables=(table,))
    made = publish(spec, WEIGHTS, Sum(), tmp_path, id_maps={"item": source})
    published = open_model(made.path).spec.tables[0].id_map
    assert published == IdMapSpec(wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entries", "change", "words"),
    [
        ({1: 4}, {}, "id 1 .entry 0. has row 4, expected one of 4 rows"),
        ({1: 0}, {"count": 2}, "expected 2 ids, got 1"),
        ({1: 0}, {"table_rows": 5}, "maps ids to a table of 5 rows, expected 4"),
        ({1: 0}, {"unknown": SharedRows((4,))}, "expected rows, 0 to 3, got 4"),
        ({1: 0}, {"unknown": HashedRows(8, 2)}, "the table's 4 rows in equal buckets, got 8 in 2"),
        ({1: 0}, {"unknown": HashedRows(4, 3)}, "the table's 4 rows in equal buckets, got 4 in 3"),
        ({1: 0}, {"unknown": HashedRows(4, 2, reserved=0)}, "reserved: expected 1 to 2, got 0"),
        ({1: 0}, {"unknown": HashedRows(4, 2, reserved=3)}, "reserved: expected 1 to 2, got 3"),
    ],
)
def test_a_wrong_source_is_refused(
    tmp_path: Path, entries: dict[int, int], change: dict[str, object], words: str
) -> None:
    source = replace(source_of(entries), **change)  # type: ignore[arg-type]
    with pytest.raises((SpecError, WeightsError), match=words):
        publish(TINY, WEIGHTS, Sum(), tmp_path, id_maps={"item": source})
    assert not [path for path in (tmp_path / "tiny").glob("*") if path.name.startswith(".staging")]


def test_an_id_that_comes_twice_is_refused_by_name(tmp_path: Path) -> None:
    ids, rows = np.array([7, 8, 7]), np.array([0, 1, 2])
    source = replace(source_of({7: 0, 8: 1}), count=3, read=lambda: iter([(ids, rows)]))
    with pytest.raises(WeightsError, match="table 'item': .*id 7 occurs twice"):
        publish(TINY, WEIGHTS, Sum(), tmp_path, id_maps={"item": source})


def test_maps_of_no_table_and_tables_without_their_map_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="id map of 'itme': no such table, only item"):
        publish(TINY, WEIGHTS, Sum(), tmp_path, id_maps={"itme": source_of(KNOWN)})
    spec = replace(TINY, tables=(replace(ITEM, id_map=IdMapSpec()),))
    with pytest.raises(SpecError, match="table 'item': has an id map without ids"):
        publish(spec, WEIGHTS, Sum(), tmp_path)


def test_without_a_known_id_golden_requests_have_to_be_given(tmp_path: Path) -> None:
    spec = replace(TINY, tables=(replace(ITEM, id_map=IdMapSpec("zero")),))
    sources = {"item": source_of({})}
    with pytest.raises(SpecError, match="feature 'item': found no id that all its tables know"):
        publish(spec, WEIGHTS, Sum(), tmp_path, id_maps=sources)
    samples = {"item": np.array([5, 6]), "age": np.ones((2, 1), np.float32)}
    made = publish(spec, WEIGHTS, Sum(), tmp_path, id_maps=sources, samples=samples)
    assert open_model(made.path).predict(samples)["score"].tolist() == [1.0, 1.0]


def test_statistics_of_raw_ids_say_how_often_rows_are_read() -> None:
    hot = [2**62] * 30 + [5] * 10 + [-1] * 5 + [7] * 2
    samples = {"clicked": np.array(hot), "age": np.zeros((len(hot), 1), np.float32)}
    found = statistics_of(SPEC, samples)["clicked"]
    assert found.pooling_factor == 1.0 and found.histogram == ()
    assert found.zipf is not None and found.zipf > 1


def test_maps_of_the_test_hold_every_strange_id() -> None:
    assert all({0, -1, 2**63 - 1, -(2**63)} <= {*one} for one in made_maps().values())
