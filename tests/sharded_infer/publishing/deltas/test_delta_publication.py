"""Delta versions: changed rows in front of a base, to the bits of a whole publication."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from sharded_infer import ChangedRows, ModelSpec, Repository, compact, open_model, publish_delta
from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.errors import (
    ArtifactError,
    GateError,
    InputError,
    NotFoundError,
    TowerError,
    WeightsError,
)
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.repositories.version_diff import diff_versions
from tests.reference.row_encoding import encode
from tests.support.delta_model import (
    Scorer,
    changed,
    delta_spec,
    drawn_changes,
    publish_whole,
    trained_rows,
)
from tests.support.manifest_file import edit_manifest


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    spec = delta_spec()
    publish_whole(spec, trained_rows(spec), tmp_path / "repository")
    return tmp_path / "repository"


def assert_same_bits(one: Path, other: Path, spec: ModelSpec) -> None:
    samples = generate_samples(spec, 300)
    for topology in ("cpu:1", "cpu:2"):
        found, expected = (open_model(path, topology=topology) for path in (one, other))
        assert torch.equal(found.engine.embeddings(samples), expected.engine.embeddings(samples))
        assert np.array_equal(found.run(samples)["score"], expected.run(samples)["score"])


def table_bytes(version: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (version / "tables").iterdir()}


@pytest.mark.parametrize("row_format", [RowFormat.FP32, RowFormat.INT8, RowFormat.INT2])
def test_chained_deltas_have_a_publications_bits(row_format: RowFormat, tmp_path: Path) -> None:
    spec = delta_spec(row_format)
    weights = trained_rows(spec)
    publish_whole(spec, weights, tmp_path / "deltas")
    for seed in range(3):
        changes = drawn_changes(spec, seed, new=2 * seed)
        published = publish_delta("ranker", changes, tmp_path / "deltas")
        assert (published.version, published.base) == (seed + 2, seed + 1)
        spec, weights = changed(spec, weights, changes)
    whole = publish_whole(spec, weights, tmp_path / "whole")
    verify_files(open_artifact(published.path))
    assert_same_bits(published.path, whole, spec)
    compacted = compact(tmp_path / "deltas", "ranker")
    assert table_bytes(compacted.path) == table_bytes(whole)
    manifest = open_artifact(compacted.path).manifest
    assert (manifest.base, manifest.overlays, manifest.format_version) == (None, None, 1)
    verify_files(open_artifact(compacted.path), blocks=True)
    assert_same_bits(compacted.path, whole, spec)


def test_a_delta_stores_the_changed_rows_and_links_all_else(repository: Path) -> None:
    base, spec = repository / "ranker" / "1", delta_spec()
    published = publish_delta("ranker", drawn_changes(spec, 1), repository)
    assert dict(published.changed_rows) == {"item": 60, "user": 1}
    assert published.stored_bytes == 60 * 20 + 12
    for name in ("tables/int8-00000.safetensors", "tower.pt2", "plans/cpu-1.json"):
        assert (published.path / name).samefile(base / name)
    [overlay] = (published.path / "overlays").iterdir()
    # Beside the rows: 4 bytes an id, and a header.
    assert overlay.stat().st_size <= published.stored_bytes + 4 * 61 + 512
    manifest = open_artifact(published.path).manifest
    assert manifest.base is not None
    assert manifest.base.version == 1
    assert manifest.base.sha256 == open_artifact(base).manifest.sha256


def test_a_delta_may_bring_another_tower(repository: Path, tmp_path: Path) -> None:
    spec, changes = delta_spec(), drawn_changes(delta_spec(), 1)
    tower = Scorer(spec.embedding_width, seed=5)
    published = publish_delta("ranker", changes, repository, tower=tower)
    new_spec, weights = changed(spec, trained_rows(spec), changes)
    whole = publish_whole(new_spec, weights, tmp_path / "whole", tower=tower)
    assert_same_bits(published.path, whole, new_spec)
    alone = publish_delta("ranker", {}, repository, tower=Scorer(spec.embedding_width, seed=6))
    assert alone.changed_rows == {}
    assert open_artifact(alone.path).manifest.overlays is not None
    check_golden(open_model(alone.path))


def test_stored_rows_are_taken_over_as_they_are(repository: Path) -> None:
    stored = encode(RowFormat.INT8, torch.randn(2, 16))
    rows = ChangedRows(np.array([7, 3]), stored=stored, row_format=RowFormat.INT8)
    model = open_model(publish_delta("ranker", {"item": rows}, repository).path)
    samples = make_input(delta_spec(), {"item": np.array([7, 3])})
    found = model.engine.embeddings(samples)[:2, :16]
    assert torch.equal(found, decode(RowFormat.INT8, stored, 16) + 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"itm": ([1], 16)}, r"changes: table 'itm': no such table; did you mean 'item'\?"),
        ({"item": ([-1], 16)}, r"table 'item': expected rows of 0 and more, got -1"),
        ({"item": ([3001], 16)}, r"row 3001 is new, behind 3000 rows, and row 3000 is not there"),
        ({"item": ([3000, 3002], 16)}, r"row 3002 is new, .* and row 3001 is not there"),
        ({"item": ([5], 12)}, r"table 'item': expected rows of 16 numbers, got 12"),
    ],
)
def test_changes_that_do_not_fit_are_refused(
    repository: Path, changes: dict[str, tuple[list[int], int]], message: str
) -> None:
    rows = {n: ChangedRows(np.array(i), torch.ones(len(i), d)) for n, (i, d) in changes.items()}
    with pytest.raises(WeightsError, match=message):
        publish_delta("ranker", rows, repository)
    assert Repository(repository).versions("ranker") == [1]


def test_rows_may_be_changed_there_and_back(repository: Path) -> None:
    spec, values = delta_spec(), torch.ones(1, 16)
    one = {"item": ChangedRows(np.array([7]), values)}
    other = {"item": ChangedRows(np.array([7]), 2 * values)}
    first = publish_delta("ranker", one, repository)
    publish_delta("ranker", other, repository)
    again = publish_delta("ranker", one, repository)
    assert_same_bits(first.path, again.path, spec)
    overlays = open_artifact(again.path).manifest.overlays
    assert overlays is not None
    assert len(overlays) == len(set(overlays)) == 2
    with pytest.raises(InputError, match="version 4 has exactly these rows and ids already"):
        publish_delta("ranker", one, repository)
    with_tower = publish_delta("ranker", one, repository, tower=Scorer(32, seed=9))
    assert open_artifact(with_tower.path).manifest.overlays == overlays


def test_a_file_of_changed_rows_is_opened_once_however_often_it_is_listed(repository: Path) -> None:
    first, second = (
        publish_delta("ranker", {"item": ChangedRows(np.array([7]), rows)}, repository).path
        for rows in (torch.ones(1, 16), torch.zeros(1, 16))
    )
    edit_manifest(second, lambda m: m.update(overlays=m["overlays"][:1] * 3000 + m["overlays"][1:]))
    descriptors = len(os.listdir("/proc/self/fd"))
    model = open_model(second)
    assert len(os.listdir("/proc/self/fd")) < descriptors + 100
    check_golden(model)
    edit_manifest(second, lambda m: m.update(overlays=m["overlays"] + m["overlays"][:1]))
    assert_same_bits(first, second, delta_spec())


def test_deltas_beyond_descriptors_fail(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharded_infer.publishing.deltas.delta_publication.MOST_OVERLAYS", 1)
    publish_delta("ranker", drawn_changes(delta_spec(), 1), repository)
    with pytest.raises(InputError, match="version 2 is the last of 1 deltas .*: compact it first"):
        publish_delta("ranker", drawn_changes(delta_spec(), 2), repository)


def test_a_diff_counts_changed_rows(repository: Path) -> None:
    publish_delta("ranker", drawn_changes(delta_spec(), 1, new=2), repository)
    compact(repository, "ranker")
    opened = Repository(repository)
    for versions, changed_rows in (((1, 2), 60), ((1, 3), 60), ((2, 3), 0)):
        found = diff_versions(opened, "ranker", versions)
        by_table = {table.name: table.rows_changed for table in found.tables}
        assert by_table == {"item": changed_rows, "user": changed_rows // 60}


def test_only_versions_under_their_own_numbers_are_changed_and_no_number_is_used_again(
    repository: Path,
) -> None:
    shutil.copytree(repository / "ranker/1", repository / "ranker/9007199254740991")
    made = publish_delta("ranker", drawn_changes(delta_spec(), 1), repository)
    assert (made.base, made.version) == (1, 2)
    assert compact(repository, "ranker").version == 3
    assert Repository(repository).remove("ranker", 3)
    made = publish_delta("ranker", drawn_changes(delta_spec(), 2), repository)
    assert (made.base, made.version) == (2, 4)


def test_a_base_that_was_changed_already_is_refused(repository: Path) -> None:
    publish_delta("ranker", drawn_changes(delta_spec(), 1), repository)
    with pytest.raises(ArtifactError, match="version 2 changes version 1 already: its changes"):
        publish_delta("ranker", drawn_changes(delta_spec(), 2), repository, base=1)
    with pytest.raises(NotFoundError, match="has no version 7; it has 1, 2"):
        publish_delta("ranker", drawn_changes(delta_spec(), 2), repository, base=7)
    assert Repository(repository).versions("ranker") == [1, 2]


def test_the_number_of_a_removed_delta_is_not_used_again(repository: Path) -> None:
    for expected in (2, 3):
        delta = publish_delta("ranker", drawn_changes(delta_spec(), expected), repository)
        assert delta.version == expected and delta.path.name == str(expected)
        shutil.rmtree(delta.path)


def test_new_versions_are_not_skipped(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Repository.commit

    def late(self: Repository, *args: object, **rest: object) -> Path:
        monkeypatch.setattr(Repository, "commit", commit)
        publish_delta("ranker", drawn_changes(delta_spec(), 2), repository)
        return commit(self, *args, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Repository, "commit", late)
    with pytest.raises(ArtifactError, match="cannot be published: is there already"):
        publish_delta("ranker", drawn_changes(delta_spec(), 1), repository)
    assert Repository(repository).versions("ranker") == [1, 2]


def test_golden_requests_are_scored_by_the_whole_of_it(repository: Path) -> None:
    spec = delta_spec()
    huge = {"item": ChangedRows(np.arange(3000), torch.randn(3000, 16) * 1000)}
    said = r"score 'score' differs from the fp32 .*\(sample \d+ the most, \d+ of \d+ beyond"
    with pytest.raises(GateError, match=said):
        publish_delta("ranker", huge, repository)
    published = publish_delta("ranker", drawn_changes(spec, 1), repository)
    assert 0 < published.max_score_diff < 0.5


def test_what_is_no_change_of_the_base_is_refused(repository: Path) -> None:
    class Wide(nn.Module):
        def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
            return embeddings[:, :2]

    with pytest.raises(InputError, match="expected changed rows of a table, or a tower, got none"):
        publish_delta("ranker", {}, repository)
    with pytest.raises(TowerError, match=r"output 'score': expected \[B\] as the base has it"):
        publish_delta("ranker", {}, repository, tower=Wide())
    stored = encode(RowFormat.INT4, torch.randn(1, 16))
    rows = ChangedRows(np.array([7]), stored=stored, row_format=RowFormat.INT4)
    with pytest.raises(WeightsError, match="expected int8 rows, as its base has, or numbers, got"):
        publish_delta("ranker", {"item": rows}, repository)
    with pytest.raises(InputError, match="version 1 is whole already"):
        compact(repository, "ranker")


def test_a_version_behind_a_bad_one_may_be_changed(repository: Path) -> None:
    spec = delta_spec()
    publish_whole(spec, trained_rows(spec, seed=9), repository)
    published = publish_delta("ranker", drawn_changes(spec, 1), repository, base=1)
    assert (published.version, published.base) == (3, 1)
