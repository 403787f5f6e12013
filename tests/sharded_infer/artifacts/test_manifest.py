import json
from dataclasses import replace
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.manifest import (
    Manifest,
    dump_manifest,
    manifest_fields,
    parse_manifest,
)
from sharded_infer.planning.plan import StoredTable
from sharded_infer.specs.model_spec import ModelSpec


@pytest.fixture(scope="module")
def manifest(published_version: Path) -> Manifest:
    return open_artifact(published_version).manifest


def test_a_manifest_is_read_back(manifest: Manifest) -> None:
    assert parse_manifest(dump_manifest(manifest), "manifest.json") == manifest


def test_its_fields_are_those_of_its_json(manifest: Manifest) -> None:
    assert json.loads(json.dumps(manifest_fields(manifest))) == json.loads(dump_manifest(manifest))


def test_it_says_what_the_model_is_and_what_is_stored(
    manifest: Manifest, trained_spec: ModelSpec
) -> None:
    # The version says of every table how it is stored, whatever decided that.
    tables = tuple(
        replace(t, format=trained_spec.row_format(t), pooling=t.pooling or "sum")
        for t in trained_spec.tables
    )
    assert manifest.model_spec() == replace(trained_spec, tables=tables)
    assert manifest.stored_tables() == {
        t.name: StoredTable(t.name, t.rows, t.dim, trained_spec.row_format(t))
        for t in trained_spec.tables
    }
    assert manifest.table_bytes == 50 * 12 + 7 * 7 + 31 * 10 + 40 * 12


def test_a_version_of_before_a_serving_field_has_its_default(manifest: Manifest) -> None:
    for forget in (["serving"], ["serving", "memory"], ["serving", "executor"]):
        document = json.loads(dump_manifest(manifest))
        del document["sha256"]
        *path, last = ["spec", *forget]
        section = document
        for step in path:
            section = section[step]
        section.pop(last, None)
        read = parse_manifest(json.dumps(document).encode(), "manifest.json")
        assert read.model_spec() == manifest.model_spec()
