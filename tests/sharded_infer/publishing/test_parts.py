import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.row_format import RowFormat
from sharded_infer import publish, publish_part
from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.errors import ArtifactError, GateError, InputError, NotFoundError
from sharded_infer.publishing import table_layout
from sharded_infer.publishing.part_publication import PublishedPart
from sharded_infer.repositories.garbage_collection import collect
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, TableSpec
from tests.sharded_infer.publishing.test_publication import content_of
from tests.support.part_model import SPEC, Scorer, trained_tables

Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return trained_tables()


@pytest.fixture(scope="module")
def whole(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = publish(SPEC, weights, Scorer(), tmp_path_factory.mktemp("whole")).path
    return manifest_of(path)


def manifest_of(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    for name in ("created_at", "version", "sha256"):
        del fields[name]
    return fields


def joined(repository: Repository, weights: Weights, parts: int, **more: Any) -> dict[str, Any]:
    version = publish(SPEC, weights, Scorer(), repository, parts=parts, **more).version
    path = repository.fetch("ranker", version)
    verify_files(open_artifact(path))
    return manifest_of(path)


def make(
    repository: Repository, weights: Weights, part: int, parts: int, spec: ModelSpec = SPEC
) -> PublishedPart:
    return publish_part(spec, weights, repository, part=part, parts=parts)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_joined_parts_are_a_whole_publish_hash_for_hash(
    parts: int, stored: Repository, weights: Weights, whole: dict[str, Any]
) -> None:
    # In any order.
    made = [make(stored, weights, part, parts) for part in reversed(range(1, parts + 1))]
    assert sum(part.rows for part in made) == sum(table.rows for table in SPEC.tables)
    assert stored.models() == []
    assert joined(stored, weights, parts) == whole


@pytest.mark.parametrize("parts", [3, 5])
def test_files_of_one_part_and_of_several_are_joined(
    parts: int, stored: Repository, weights: Weights, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(table_layout.lay_out, "__defaults__", (400_000,))
    plain = manifest_of(publish(SPEC, weights, Scorer(), tmp_path / "whole").path)
    made = [make(stored, weights, part, parts) for part in range(1, parts + 1)]
    held = [file for part in made for file in part.files]
    files = [name for name in plain["files"] if name.startswith("tables/")]
    assert set(held) == {name for name in files if not name.endswith(".blocks")}
    assert parts < len(set(held)) < len(held) < len(set(held)) + parts
    assert joined(stored, weights, parts) == plain


def test_a_whole_file_of_a_folder_is_linked_not_written(weights: Weights, tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    location = Path(make(repository, weights, 1, 1).location)
    inodes = {file.name: file.stat().st_ino for file in (location / "tables").iterdir()}
    path = publish(SPEC, weights, Scorer(), repository, parts=1).path
    assert {name: (path / "tables" / name).stat().st_ino for name in inodes} == inodes
    # Joined parts are removed.
    assert repository.parts.names("ranker") == []
    assert not list(path.parent.glob(".*"))


def test_small_tables_leave_parts_without_rows(tmp_path: Path) -> None:
    spec = ModelSpec("tiny", (TableSpec("a", rows=2, dim=4), TableSpec("b", rows=1, dim=4)))
    small = {t.name: torch.randn(t.rows, t.dim) for t in spec.tables}
    plain = manifest_of(publish(spec, small, Scorer(), tmp_path / "whole").path)
    made = [publish_part(spec, small, tmp_path, part=i, parts=7) for i in range(1, 8)]
    assert sorted(part.rows for part in made) == [0, 0, 0, 0, 0, 1, 2]
    assert manifest_of(publish(spec, small, Scorer(), tmp_path, parts=7).path) == plain


def test_parts_and_the_same_part_at_once_have_the_same_bytes(
    stored: Repository, weights: Weights, whole: dict[str, Any]
) -> None:
    first = make(stored, weights, 1, 2)
    [name] = stored.parts.names("ranker")
    record = stored.parts.record("ranker", name)
    assert make(stored, weights, 1, 2) == first
    assert stored.parts.record("ranker", name) == record
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda part: make(stored, weights, part, 2), (1, 2, 1, 2)))
    assert len(stored.parts.names("ranker")) == 2
    assert joined(stored, weights, 2) == whole


def test_missing_parts_are_named(stored: Repository, weights: Weights) -> None:
    for part, parts in ((0, 2), (3, 2), (1, 0), (1, 10**6)):
        with pytest.raises(InputError, match="expected 1 to"):
            make(stored, weights, part, parts)
    make(stored, weights, 2, 4)
    with pytest.raises(NotFoundError) as failed:
        publish(SPEC, weights, Scorer(), stored, parts=4)
    for part, missing in {1: True, 2: False, 3: True, 4: True}.items():
        assert (f"part {part}/4 is missing" in str(failed.value)) == missing
    assert stored.models() == []


ADS, USER, *OTHERS = SPEC.tables
INT8_USER = (ADS, replace(USER, format=RowFormat.INT8), *OTHERS)


NO_CLIP = replace(SPEC.quantization, clip=False)
# What the refusal says, and the spec, change of weights and number of parts that it is of.
FOREIGN = {
    "table 'ads': made from other weights": (SPEC, 0.25, 2),
    "table 'user': format int8 there, int4 here": (replace(SPEC, tables=INT8_USER), 0, 2),
    "the number of parts: 3 there, 2 here": (SPEC, 0, 3),
    "quantization.clip: False there, True here": (replace(SPEC, quantization=NO_CLIP), 0, 2),
    r"tables: \['ads', 'user', 'flag', 'shop'\]": (replace(SPEC, tables=SPEC.tables[:-1]), 0, 2),
}


@pytest.mark.parametrize("words", FOREIGN)
def test_a_part_that_does_not_fit_is_refused_with_what_differs(
    words: str, stored: Repository, weights: Weights, whole: dict[str, Any]
) -> None:
    spec, shift, parts = FOREIGN[words]
    make(stored, weights, 1, 2)
    make(stored, weights | {"ads": weights["ads"] + shift}, 2, parts, spec)
    with pytest.raises(NotFoundError, match=rf"part 2/2 does not fit: {words}"):
        publish(SPEC, weights, Scorer(), stored, parts=2)
    # The right one beside it makes the version.
    make(stored, weights, 2, 2)
    assert joined(stored, weights, 2) == whole


def test_a_part_of_another_release_does_not_fit(
    stored: Repository, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(
            "sharded_infer.publishing.part_record.producer", lambda: {"sharded-infer": "0.0.1"}
        )
        make(stored, weights, 1, 1)
    with pytest.raises(NotFoundError, match="part 1/1 does not fit: sharded-infer: 0.0.1 there"):
        publish(SPEC, weights, Scorer(), stored, parts=1)


def damages(folder: Path) -> Iterator[tuple[Path, bytes | None, str]]:
    """A file to damage, its new content (None: none), and the error message."""
    rows = folder / "tables" / "int8-00000.safetensors"
    content = rows.read_bytes()
    flipped = bytearray(content)
    flipped[-1] ^= 1
    yield rows, bytes(flipped), "int8-00000.safetensors was altered"
    yield rows, content[:-3], f"has {len(content) - 3:d} bytes, expected {len(content)}"
    yield rows, content + b"abc", f"has {len(content) + 3:d} bytes"
    yield rows, None, "int8-00000.safetensors is missing"
    record = folder / "part.json"
    text = record.read_bytes()
    yield record, text[: len(text) // 2], "not a part's record"
    yield record, b"{}", "not a part's record"
    fields = json.loads(text)
    fields["files"]["tables/int8-00000.safetensors"]["bytes"] -= 12
    yield record, json.dumps(fields).encode(), "does not describe part 1/2"
    yield record, None, "part 1/2 is missing"


def test_a_damaged_part_is_refused_by_name_and_mended_by_making_it_again(
    weights: Weights, whole: dict[str, Any], tmp_path: Path
) -> None:
    repository = Repository(tmp_path)
    make(repository, weights, 2, 2)
    folder = Path(make(repository, weights, 1, 2).location)
    sound = content_of(folder)
    for path, content, words in damages(folder):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises((ArtifactError, NotFoundError)) as refused:
            publish(SPEC, weights, Scorer(), repository, parts=2)
        assert words in str(refused.value).replace(",", "") or words in str(refused.value)
        assert "part 1/2" in str(refused.value)
        assert repository.models() == []
        make(repository, weights, 1, 2)
        assert content_of(folder) == sound
    assert joined(repository, weights, 2) == whole


def test_a_failed_gate_leaves_the_parts_to_be_joined_again(
    stored: Repository, weights: Weights, whole: dict[str, Any]
) -> None:
    for part in (1, 2):
        make(stored, weights, part, 2)
    strict = replace(SPEC, gate=GateSpec(max_score_diff=1e-9))
    with pytest.raises(GateError):
        publish(strict, weights, Scorer(), stored, parts=2)
    assert stored.models() == []
    assert len(stored.parts.names("ranker")) == 2
    assert joined(stored, weights, 2) == whole


def test_a_budget_gives_every_part_the_same_formats(weights: Weights, tmp_path: Path) -> None:
    free = replace(
        SPEC,
        tables=tuple(replace(table, format=None) for table in SPEC.tables),
        quantization=replace(SPEC.quantization, memory_budget="3.5MB"),
    )
    plain = manifest_of(publish(free, weights, Scorer(), tmp_path / "whole").path)
    for part in (1, 2):
        publish_part(free, weights, tmp_path, part=part, parts=2)
    assert manifest_of(publish(free, weights, Scorer(), tmp_path, parts=2).path) == plain


def test_old_parts_are_collected_and_new_ones_stay(stored: Repository, weights: Weights) -> None:
    for part in (1, 2):
        make(stored, weights, part, 2)
    publish(SPEC, weights, Scorer(), stored, parts=2)
    make(stored, weights, 1, 3)
    assert any(name.startswith("1-of-3") for name in stored.parts.names("ranker"))
    collect(stored, "ranker", keep=1)
    assert any(name.startswith("1-of-3") for name in stored.parts.names("ranker"))
    assert collect(stored, "ranker", keep=1, safe_seconds=-1).leftovers.bytes > 0
    assert stored.parts.names("ranker") == []
    stored.verify("ranker")
