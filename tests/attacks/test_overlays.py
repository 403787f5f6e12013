"""Damaged and hostile overlays are refused by name, before a row of them is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.table_header import TableEntry, table_file_head
from sharded_infer.deltas.overlays import open_overlays
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from tests.support.delta_model import delta_spec, drawn_changes, publish_whole, trained_rows
from tests.support.manifest_file import edit_manifest

ROW_BYTES = 20


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A delta version with two new rows."""
    publish_whole(delta_spec(), trained_rows(delta_spec()), tmp_path)
    return publish_delta("ranker", drawn_changes(delta_spec(), 1, new=2), tmp_path).path


def write(version: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Writes another overlay in the place of the version's."""
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
        ({"item.ids": ids_of(9, 2, *NEW), "item.rows": rows(4)}, "ascending rows, got 2 after 9"),
        ({"item.ids": ids_of(2, *NEW, 3002), "item.rows": rows(4)}, "rows of 0 to 3001, got 3002"),
        (
            {"item.ids": ids_of(2**32 - 1), "item.rows": rows(1)},
            "rows of 0 to 3001, got 4294967295",
        ),
        ({"item.ids": ids_of(2, *NEW), "item.rows": rows(2)}, r"got \[3, 4\] and \[2, 20\]"),
        ({"item.ids": ids_of(2, *NEW), "item.rows": rows(3, 12)}, r"got \[3, 4\] and \[3, 12\]"),
        (
            {"item.ids": ids_of(2, *NEW, dtype="<u8"), "item.rows": rows(3)},
            r"expected ids \[M, 4\] and rows \[M, 20\], got \[3, 8\] and \[3, 20\]",
        ),
        ({"item.ids": rows(0, 4), "item.rows": rows(0)}, r"got \[0, 4\] and \[0, 20\]"),
        ({"itm.ids": ids_of(2), "itm.rows": rows(1)}, "'itm' is no table of the version"),
        ({"item.ids": ids_of(2)}, "expected ids and rows of each changed table, got item.ids"),
        ({"item.rows": rows(1)}, "expected ids and rows of each changed table, got item.rows"),
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
        open_overlays(open_artifact(version))
    with pytest.raises(ArtifactError, match=message):
        open_model(version, verify=False)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "too short"),
        (flip, "altered: its SHA-256 is"),
        (Path.unlink, "missing; the manifest says"),
        (replace_by_link, "a symbolic link"),
    ],
)
def test_a_damaged_overlay_is_named(
    version: Path, damage: Callable[[Path], None], message: str
) -> None:
    [path] = (version / "overlays").iterdir()
    damage(path)
    with pytest.raises(ArtifactError, match=message):
        open_model(version)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": None}, "overlays: expected one or more, and a base, or none"),
        ({"overlays": []}, "overlays: expected one or more, and a base, or none"),
        ({"overlays": ["../1/tower.pt2"]}, "overlays.0"),
        ({"overlays": ["overlays/none.safetensors"]}, "is used but has no size and hash"),
        ({"overlays": None}, "its pieces hold 3000 of 3,?002 rows"),
        (
            {"format_version": 1},
            "expected 2 for 0 tables with raw ids, 0 with ordered rows, 0 sequences and a base",
        ),
        (
            {"base": {"version": 2, "sha256": "0" * 64}},
            "base.version: expected one before 2, got 2",
        ),
        ({"base": {"version": 0, "sha256": "0" * 64}}, "base.version"),
        ({"base": {"version": 1, "sha256": "0"}}, "base.sha256"),
        ({"base": {"version": 1, "sha256": "0" * 64, "changes": ""}}, "base.changes"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    version: Path, change: dict[str, Any], message: str
) -> None:
    def edit(document: dict[str, Any]) -> None:
        for name, value in change.items():
            if value is None:
                del document[name]
            else:
                document[name] = value

    edit_manifest(version, edit)
    with pytest.raises(ArtifactError, match=message):
        open_artifact(version)
