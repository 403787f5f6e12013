import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.ids.id_hash import IdHash, StringHash, hash_ids, hash_strings, joined_strings
from sharded_infer.artifacts.golden import load_golden
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError, SpecError
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.spec_file import parse_spec
from tests.support.manifest_file import Document, edit_manifest
from tests.support.raw_ids import SPEC, Sum, source_of
from tests.support.servers import Command

TABLES = (
    TableSpec("user", 11, 2, id_map=IdMapSpec(hashed="identity")),
    TableSpec("item", 7, 3, id_map=IdMapSpec(hashed="murmur_hash3_2x64", hash_seed=2**63)),
    TableSpec("word", 5, 1, id_map=IdMapSpec(hashed="xxh3_64", strings="xxh3_64", seed=7)),
)
HASHED = ModelSpec("hashed", TABLES, dense=SPEC.dense)
WEIGHTS = {t.name: torch.randn(t.rows, t.dim, generator=torch.manual_seed(1)) for t in TABLES}
IDS = np.array([0, -1, 2**63 - 1, -(2**63), 12345678901])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hashed")
    return publish(HASHED, WEIGHTS, Sum(), folder, topologies=("cpu:1", "h100:1")).path


def rows_of(table: TableSpec, ids: Any) -> list[int]:
    assert table.id_map is not None and table.id_map.hashing is not None
    name, seed = table.id_map.hashing
    return [hashed % table.rows for hashed in hash_ids(name, np.array(ids), seed).tolist()]


def wanted_of(ids: dict[str, Any]) -> Any:
    rows = [WEIGHTS[table.name][rows_of(table, ids[table.name])] for table in TABLES]
    return torch.cat(rows, 1).mean(1).numpy()


@pytest.mark.parametrize(
    "options", [{}, {"topology": "h100:1", "devices": DeviceChoice(simulated=True)}]
)
def test_every_id_reads_the_row_of_its_hash(published: Path, options: dict[str, Any]) -> None:
    model = open_model(published, **options)
    ids = {table.name: IDS for table in TABLES}
    scores = model.predict({**ids, "age": np.zeros((5, 1), np.float32)})["score"]
    np.testing.assert_allclose(scores, wanted_of(ids), rtol=1e-2, atol=1e-2)
    assert model.id_maps == {}


def test_identity_is_the_unsigned_id_modulo_the_rows() -> None:
    assert rows_of(TABLES[0], IDS) == [one % 2**64 % 11 for one in IDS.tolist()]


def test_a_string_is_hashed_to_an_id_that_is_hashed_to_a_row() -> None:
    (raw,) = hash_strings(StringHash.XXH3_64, *joined_strings([b"red"]), 7).tolist()
    (row,) = rows_of(TABLES[2], [raw])
    assert row == int(hash_ids(IdHash.XXH3_64, np.array([raw]))[0]) % 5
    assert HASHED.string_inputs == {"word": (StringHash.XXH3_64, 7)}


def test_it_has_format_2_and_no_file(published: Path, sharded_infer: Command) -> None:
    document = json.loads((published / "manifest.json").read_text())
    assert document["format_version"] == 2 and "id_maps" not in document
    said = document["spec"]["tables"][1]["id_map"]
    assert said == {"hashed": "murmur_hash3_2x64", "hash_seed": 2**63, "seed": 0}
    assert not (published / "id_maps").exists()
    sharded_infer("verify", "-r", published.parents[1])
    shown = sharded_infer("inspect", "-r", published.parents[1]).out
    assert "raw ids, hashed in user (identity), item (murmur_hash3_2x64), word (xxh3_64)\n" in shown


def test_golden_requests_have_ids_of_64_bits(published: Path) -> None:
    golden = load_golden(published / "golden.safetensors", open_model(published).spec)
    assert not golden.model_input.ids_checked
    values = golden.model_input.groups[0].values
    assert values.min() < -(2**62) and values.max() > 2**62


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


def test_calibration_samples_have_raw_ids(tmp_path: Path) -> None:
    ids = {table.name: IDS for table in TABLES}
    samples = make_input(HASHED, {**ids, "age": np.zeros((5, 1), np.float32)})
    made = publish(HASHED, WEIGHTS, Sum(), tmp_path, calibration=CalibrationSamples(samples))
    golden = load_golden(made.path / "golden.safetensors", HASHED)
    assert golden.model_input.groups[0].values[:5].tolist() == IDS.tolist()
    np.testing.assert_allclose(golden.scores["score"], wanted_of(ids), rtol=1e-5, atol=1e-6)
    assert made.report.calibration is not None


def test_a_map_of_a_table_that_hashes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"table 'user': its ids are hashed \(identity\), but"):
        publish(HASHED, WEIGHTS, Sum(), tmp_path, id_maps={"user": source_of({1: 1})})


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
    fields = {"name": "m", "tables": [{**table, "id_map": {"hashed": "identity"}}]}
    assert parse_spec(fields).mapped_tables == ()
    with pytest.raises(SpecError, match=words):
        parse_spec({"name": "m", "tables": [{**table, "id_map": said}]})
    with pytest.raises(SpecError, match="padding_idx: expected none beside id_map"):
        parse_spec(
            {"name": "m", "tables": [{**table, "id_map": {"hashed": "identity"}, "padding_idx": 1}]}
        )


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda d: d.update(format_version=1),
            "format_version: expected 2 for 3 tables with raw ids, .* and no base, got 1",
        ),
        (
            lambda d: d.update(id_maps={"user": "tower.pt2"}),
            r"id_maps: expected those of tables \[\], got \['user'\]",
        ),
        (
            lambda d: d["spec"]["tables"][0]["id_map"].pop("hashed"),
            r"id_maps: expected those of tables \['user'\], got \[\]",
        ),
        (lambda d: d["spec"]["tables"][0]["id_map"].update(hashed="other"), "hashed"),
        (lambda d: d["spec"]["tables"][0]["id_map"].update(hash_seed=5), "expected 0 for identity"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    published: Path, tmp_path: Path, edit: Callable[[Document], object], words: str
) -> None:
    version = Path(shutil.copytree(published, tmp_path / "hashed" / "1"))
    edit_manifest(version, lambda document: None)
    open_model(version)
    edit_manifest(version, edit)
    with pytest.raises(ArtifactError, match=words):
        open_model(version)
