import json
from dataclasses import replace
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.manifest import Manifest, dump_manifest, parse_manifest
from sharded_infer.artifacts.provenance import Provenance, provenance_of
from sharded_infer.errors import ArtifactError, InputError


@pytest.fixture(scope="module")
def manifest(published_version: Path) -> Manifest:
    return open_artifact(published_version).manifest


def test_a_manifest_is_read_back(manifest: Manifest) -> None:
    assert parse_manifest(dump_manifest(manifest), "manifest.json") == manifest


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


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"note": ""}, "^note: .* at least 1 character, got ''"),
        ({"note": "x" * 1001}, "^note: .* at most 1000 characters, got 'xxx"),
        ({"run_id": "x" * 201}, "^run_id: .* at most 200 characters"),
        ({"source_revision": "x" * 201}, "^source_revision: .* at most 200 characters"),
        ({"note": "a\x1b[31mb"}, r"^note: '\\x1b' is not a printable character"),
        ({"run_id": "two\nlines"}, r"^run_id: '\\n' is not a printable character"),
        ({"note": "\u202egnp.exe"}, "^note: .* is not a printable character"),
        ({"note": "\udc80"}, "^note: "),
        ({"note": 7}, "^note: .* valid string, got 7"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(said: dict[str, str], message: str) -> None:
    words = {"note": None, "run_id": None, "source_revision": None, **said}
    with pytest.raises(InputError, match=message):
        provenance_of(**words)


def test_what_is_said_is_one_line_for_people() -> None:
    assert provenance_of(None, None, None) is None
    longest = provenance_of("ä" * 1000, "r" * 200, "s" * 200)
    assert longest is not None and len(longest.text) == 1000 + 400 + len("note ; run ; source ")
    only = provenance_of(None, "run 7", None)
    assert only is not None and only.text == "run run 7"


def test_a_manifest_keeps_what_is_said_and_leaves_out_what_is_not(manifest: Manifest) -> None:
    assert b"provenance" not in dump_manifest(manifest)
    said = replace(manifest, provenance=Provenance(note="first", source_revision="4f2a9c1"))
    text = dump_manifest(said)
    assert json.loads(text)["provenance"] == {"note": "first", "source_revision": "4f2a9c1"}
    assert parse_manifest(text, "manifest.json") == said


@pytest.mark.parametrize(
    "said", [{"note": "a\x1b[31m"}, {"note": "x" * 1001}, {"author": "me"}, "first", {"note": 7}]
)
def test_a_manifest_that_says_it_otherwise_is_refused(said: object, manifest: Manifest) -> None:
    fields = json.loads(dump_manifest(manifest))
    del fields["sha256"]
    text = json.dumps({**fields, "provenance": said}).encode()
    with pytest.raises(ArtifactError, match="manifest.json: provenance"):
        parse_manifest(text, "manifest.json")
