import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.ids.id_hash import hash_ids
from sharded_infer import Model, ModelSpec, TableSpec, open_model, publish, statistics_of
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.errors import RequestError, SpecError, WeightsError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.sampled_ids import mapped_samples, with_frequencies
from sharded_infer.specs.id_map_spec import HashedRows, IdMapSpec, SharedRows
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.specs.spec_file import parse_spec
from tests.support.raw_ids import (
    SPEC,
    TOPOLOGIES,
    Arrays,
    RawModel,
    Sum,
    publish_raw,
    raw_request,
    source_of,
)
from tests.support.servers import Command

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
def test_plans_give_what_a_dict_gives(raw: RawModel, topology: str, memory: TableMemory) -> None:
    model = open_model(raw.path, topology=topology, memory=memory)
    plain = open_model(raw.plain, topology=topology, memory=memory)
    for seed, batch in enumerate((1, 2, 9, 33)):
        assert_equal(model, plain, raw_request(raw, batch, seed))
        weighted = ("clicked", "shop")
        assert_equal(model, plain, raw_request(raw, batch, seed, weighted=weighted))
        shared = ("user_id", "bought", "shop")
        assert_equal(model, plain, raw_request(raw, batch, seed, shared=shared))


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
def test_an_unknown_id_is_refused_by_feature_sample_and_table(raw: RawModel, strange: int) -> None:
    model = open_model(raw.path)
    inputs, _ = raw_request(raw, 3, 0)
    known = next(iter(raw.maps["user"]))
    inputs["user_id"] = np.array([known, known, strange])
    inputs["user_id.lengths"] = np.array([1, 0, 2])
    words = f"feature 'user_id', sample 2: id {strange} is not in the id map of table 'user'"
    with pytest.raises(RequestError, match=words):
        model.predict(inputs)


def test_a_version_with_id_maps_has_format_2_and_any_other_has_1(raw: RawModel) -> None:
    manifest = open_artifact(raw.path).manifest
    assert manifest.format_version == 2
    assert manifest.id_maps == {n: f"id_maps/{n}.index" for n in ("user", "item", "shop", "ad")}
    document = json.loads((raw.plain / "manifest.json").read_text())
    assert document["format_version"] == 1 and "id_maps" not in document
    assert "id_map" not in document["spec"]["tables"][0]


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


def test_maps_of_no_table_and_tables_without_their_map_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="id map of 'itme': no such table, only item"):
        publish(TINY, WEIGHTS, Sum(), tmp_path, id_maps={"itme": source_of(KNOWN)})
    spec = replace(TINY, tables=(replace(ITEM, id_map=IdMapSpec()),))
    with pytest.raises(SpecError, match="table 'item': has an id map without ids"):
        publish(spec, WEIGHTS, Sum(), tmp_path)
    spec = replace(TINY, tables=(replace(ITEM, id_map=IdMapSpec(hashed="identity")),))
    with pytest.raises(SpecError, match=r"table 'item': its ids are hashed \(identity\), but"):
        publish(spec, WEIGHTS, Sum(), tmp_path, id_maps={"item": source_of(KNOWN)})


def test_without_a_known_id_golden_requests_have_to_be_given(tmp_path: Path) -> None:
    spec = replace(TINY, tables=(replace(ITEM, id_map=IdMapSpec("zero")),))
    sources = {"item": source_of({})}
    with pytest.raises(SpecError, match="feature 'item': found no id that all its tables know"):
        publish(spec, WEIGHTS, Sum(), tmp_path, id_maps=sources)
    samples = {"item": np.array([5, 6]), "age": np.ones((2, 1), np.float32)}
    made = publish(spec, WEIGHTS, Sum(), tmp_path, id_maps=sources, samples=samples)
    assert open_model(made.path).predict(samples)["score"].tolist() == [1.0, 1.0]


HASHED_TABLES = (
    TableSpec("user", 11, 2, id_map=IdMapSpec(hashed="identity")),
    TableSpec("item", 7, 3, id_map=IdMapSpec(hashed="murmur_hash3_2x64", hash_seed=2**63)),
    TableSpec("word", 5, 1, id_map=IdMapSpec(hashed="xxh3_64", strings="xxh3_64", seed=7)),
)
HASHED = ModelSpec("hashed", HASHED_TABLES, dense=SPEC.dense)
HASHED_WEIGHTS = {
    t.name: torch.randn(t.rows, t.dim, generator=torch.manual_seed(1)) for t in HASHED_TABLES
}
IDS = np.array([0, -1, 2**63 - 1, -(2**63), 12345678901])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hashed")
    return publish(HASHED, HASHED_WEIGHTS, Sum(), folder, topologies=("cpu:1", "h100:1")).path


@pytest.mark.parametrize(
    "options", [{}, {"topology": "h100:1", "devices": DeviceChoice(simulated=True)}]
)
def test_every_id_reads_the_row_of_its_hash(published: Path, options: dict[str, Any]) -> None:
    model = open_model(published, **options)
    ids = {table.name: IDS for table in HASHED_TABLES}
    scores = model.predict({**ids, "age": np.zeros((5, 1), np.float32)})["score"]
    rows = []
    for table in HASHED_TABLES:
        assert table.id_map is not None and table.id_map.hashing is not None
        name, seed = table.id_map.hashing
        numbers = [hashed % table.rows for hashed in hash_ids(name, IDS, seed).tolist()]
        rows.append(HASHED_WEIGHTS[table.name][numbers])
    np.testing.assert_allclose(scores, torch.cat(rows, 1).mean(1), rtol=1e-2, atol=1e-2)
    assert model.id_maps == {}


def test_it_has_format_2_and_no_file(published: Path, sharded_infer: Command) -> None:
    document = json.loads((published / "manifest.json").read_text())
    assert document["format_version"] == 2 and "id_maps" not in document
    said = document["spec"]["tables"][1]["id_map"]
    assert said == {"hashed": "murmur_hash3_2x64", "hash_seed": 2**63, "seed": 0}
    assert not (published / "id_maps").exists()
    sharded_infer("verify", "-r", published.parents[1])
    shown = sharded_infer("inspect", "-r", published.parents[1]).out
    assert "raw ids, hashed in user (identity), item (murmur_hash3_2x64), word (xxh3_64)\n" in shown


def test_tables_of_every_kind_share_a_feature(tmp_path: Path) -> None:
    mapped = TableSpec("map", 4, 1, features=("f",), id_map=IdMapSpec(SharedRows((3,))))
    hashed = TableSpec("hash", 3, 1, features=("f", "g"), id_map=IdMapSpec(hashed="identity"))
    plain = TableSpec("plain", 4, 1, features=("g",), out_of_range="modulo")
    spec = replace(HASHED, tables=(mapped, hashed, plain))
    weights = {t.name: torch.arange(float(t.rows))[:, None] for t in spec.tables}
    made = publish(spec, weights, Sum(), tmp_path, id_maps={"map": source_of({-5: 1, 9: 2})})
    model = open_model(made.path)
    asked = {"f": np.array([-5, 9, 8]), "g": np.array([2, 5, 4])}
    scores = model.predict({**asked, "age": np.zeros((3, 1), np.float32)})["score"]
    # -5 is 2^64 - 5, which is 2 modulo 3.
    wanted = [[1, (2**64 - 5) % 3, 2, 2], [2, 0, 2, 1], [3, 2, 1, 0]]
    np.testing.assert_allclose(scores, np.mean(wanted, 1), atol=0.05)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"hashed": "md5"}, "hashed: .*got 'md5'"),
        ({"hashed": "xxh3_64", "unknown": "zero"}, "unknown: expected none beside hashed"),
        ({"hashed": "xxh3_64", "file": "ids.npy"}, "file: expected none beside hashed"),
        ({"hashed": "identity", "hash_seed": 1}, "hash_seed: expected 0 for identity, got 1"),
        ({"hashed": "xxh3_64", "hash_seed": -1}, "hash_seed"),
        ({"hashed": "xxh3_64", "hash_seed": 2**64}, "hash_seed"),
        ({"hash_seed": 1}, "hash_seed: 1 without hashed"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(said: dict[str, Any], words: str) -> None:
    table = {"name": "user", "rows": 2**40, "dim": 2}
    fields: dict[str, Any] = {"name": "m", "tables": [{**table, "id_map": {"hashed": "identity"}}]}
    assert parse_spec(fields).mapped_tables == ()
    with pytest.raises(SpecError, match=words):
        parse_spec({"name": "m", "tables": [{**table, "id_map": said}]})
    fields["tables"][0]["padding_idx"] = 1
    with pytest.raises(SpecError, match="padding_idx: expected none beside id_map"):
        parse_spec(fields)


STRICT_ITEM = TableSpec("item", rows=8, dim=2, id_map=IdMapSpec("error"))
STRICT = ModelSpec("tiny", (STRICT_ITEM,))
THREE_IDS = {10**12: 7, -5: 0, 77: 1}


@pytest.mark.parametrize("weighted", [(), ("clicked", "shop")], ids=str)
def test_samples_are_mapped_as_the_version_maps(raw: RawModel, weighted: tuple[str, ...]) -> None:
    model = open_model(raw.path)
    inputs, _ = raw_request(raw, 40, 7, weighted=weighted)
    sources = {name: source_of(entries) for name, entries in raw.maps.items()}
    found = mapped_samples(SPEC, make_input(SPEC, inputs), sources)
    wanted = InputPolicy(model.spec, model.id_maps).apply(make_input(SPEC, inputs))
    assert found.ids_checked and found.ids_unknown == wanted.ids_unknown != ()
    for one, other in zip(found.groups, wanted.groups, strict=True):
        assert np.array_equal(one.values, other.values)
        assert np.array_equal(one.lengths, other.lengths)
        assert (one.weights is None) == (other.weights is None)
        assert one.weights is None or np.array_equal(one.weights, other.weights)


def test_an_unknown_id_is_refused_or_left_out() -> None:
    samples, sources = [{"item": [77, 6]}, {"item": -5}], {"item": source_of(THREE_IDS)}
    words = "feature 'item', sample 0: id 6 is not in the id map of table 'item'"
    with pytest.raises(RequestError, match=words):
        mapped_samples(STRICT, samples, sources)
    (group,) = mapped_samples(STRICT, samples, sources, leave_out=True).groups
    assert group.values.tolist() == [1, 0] and group.lengths.tolist() == [[1, 1]]
    rows = replace(STRICT, tables=(*STRICT.tables, TableSpec("shop", rows=3, dim=1)))
    (group,) = mapped_samples(rows, [{"item": 77, "shop": [3, 2]}], sources, leave_out=True).groups
    assert group.values.tolist() == [1, 2]


def test_an_unknown_id_of_a_sequence_is_no_row() -> None:
    samples, sources = [{"item": [77, 6, -5]}, {"item": [77]}], {"item": source_of(THREE_IDS)}
    spec = replace(STRICT, sequences={"item": SequenceSpec(9, features=("item",))})
    mapped = mapped_samples(spec, samples, sources, leave_out=True)
    assert mapped.groups[0].values.tolist() == [1, -1, 0, 1]
    counted = statistics_of(spec, mapped)["item"]
    assert counted.pooling_factor == 1.5 and sum(counted.histogram) == pytest.approx(1)
    frequencies = with_frequencies(spec, samples, sources)["item"].frequencies
    assert frequencies is not None
    [(rows, counts)] = frequencies()
    assert rows.tolist() == [0, 1] and counts.tolist() == [1, 2]
