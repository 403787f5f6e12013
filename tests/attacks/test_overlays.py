"""Damaged and hostile overlays are refused by name, before a row of them is read."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.artifacts.table_header import TableEntry, table_file_head
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.repositories.repository import Repository
from tests.support.delta_model import delta_spec, drawn_changes, publish_whole, trained_rows
from tests.support.manifest_file import edit_manifest
from tests.support.signing_keys import make_key

ROW_BYTES = 20


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("published")
    publish_whole(delta_spec(), trained_rows(delta_spec()), home)
    publish_delta("ranker", drawn_changes(delta_spec(), 1, new=2), home)
    return home


@pytest.fixture
def version(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "models") / "ranker" / "2")


def write(version: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    [path] = (version / "overlays").iterdir()
    entries = [TableEntry(name, len(array), array.shape[1]) for name, array in tensors.items()]
    body = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(table_file_head(entries) + body)


def ids_of(*numbers: int, dtype: str = "<u4") -> np.ndarray[Any, Any]:
    return np.array(numbers, dtype).view(np.uint8).reshape(len(numbers), -1)


def rows(count: int, row_bytes: int = ROW_BYTES) -> np.ndarray[Any, Any]:
    return np.zeros((count, row_bytes), np.uint8)


NEW = (3000, 3001)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"item.ids": ids_of(2, 2, *NEW), "item.rows": rows(4)}, "ascending rows, got 2 after 2"),
        ({"item.ids": ids_of(2, *NEW, 3002), "item.rows": rows(4)}, "rows of 0 to 3001, got 3002"),
        ({"item.ids": ids_of(2, *NEW), "item.rows": rows(2)}, r"got \[3, 4\] and \[2, 20\]"),
        (
            {"item.ids": ids_of(2, *NEW, dtype="<u8"), "item.rows": rows(3)},
            r"expected ids \[M, 4\] and rows \[M, 20\], got \[3, 8\] and \[3, 20\]",
        ),
        ({"item.ids": rows(0, 4), "item.rows": rows(0)}, r"got \[0, 4\] and \[0, 20\]"),
        ({"itm.ids": ids_of(2), "itm.rows": rows(1)}, "'itm' is no table of the version"),
        ({"item.ids": ids_of(2)}, "expected ids and rows of each changed table, got item.ids"),
        ({"item.ids": ids_of(2, 3001), "item.rows": rows(2)}, "row 3000 is new, .* not there"),
        ({"item.ids": ids_of(2), "item.rows": rows(1)}, "row 3000 is new, behind 3000"),
        ({"user.ids": ids_of(2), "user.rows": rows(1, 12)}, "hold 3000 of 3002 rows, and the oth"),
    ],
)
def test_an_overlay_that_is_none_is_refused(
    version: Path, tensors: dict[str, np.ndarray[Any, Any]], message: str
) -> None:
    write(version, tensors)
    with pytest.raises(ArtifactError, match=message):
        open_model(version, verify=False)


def test_a_delta_under_another_number_is_no_base(version: Path) -> None:
    shutil.copytree(version, version.with_name("3"))
    made = publish_delta("ranker", drawn_changes(delta_spec(), 2), version.parents[1])
    assert (made.base, made.version) == (2, 4)
    with pytest.raises(ArtifactError, match="says version 2, its folder 3"):
        open_model(version.with_name("3"))


def test_a_delta_that_a_foreign_key_signed_is_refused(tmp_path: Path) -> None:
    ours, foreign = (make_key(tmp_path, name) for name in ("ours", "foreign"))
    place, spec = tmp_path / "models", delta_spec()
    publish_whole(spec, trained_rows(spec), place)
    for number, key in enumerate((ours, foreign)):
        changes = drawn_changes(spec, number)
        publish_delta("ranker", changes, place, sign_keys=[key.private])
    trusting = Repository(place, trusted_keys=[ours.public])
    trusting.verify("ranker", 2)
    refused = f"/3/manifest.json: expected a signature by key {ours.key_id}"
    for read in (trusting.open, trusting.fetch, trusting.verify):
        with pytest.raises(ArtifactError, match=refused):
            read("ranker", 3)
    # Nothing that is trusted is made of it.
    with pytest.raises(ArtifactError, match=refused):
        publish_delta("ranker", drawn_changes(spec, 2), trusting, sign_keys=[ours.private])


@pytest.mark.parametrize("other", [None, "0" * 64])
def test_a_delta_needs_nothing_of_its_base(version: Path, other: str | None) -> None:
    """Its manifest lists all of its files, by hash: what it says of its base is not followed."""
    samples = generate_samples(delta_spec(), 50)
    expected = open_model(version).run(samples)["score"]
    if other is not None:
        edit_manifest(version, lambda document: document["base"].update(sha256=other))
    shutil.rmtree(version.with_name("1"))
    assert np.array_equal(open_model(version).run(samples)["score"], expected)
    later = publish_delta("ranker", drawn_changes(delta_spec(), 2), version.parents[1])
    assert (later.version, later.base) == (3, 2)
