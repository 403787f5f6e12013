"""Versions whose id maps say parts that are not those of their ids."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError
from tests.support.manifest_file import Document, edit_manifest
from tests.support.raw_cluster import publish_raw_parts
from tests.support.servers import Command


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_raw_parts(tmp_path_factory.mktemp("parts") / "models", 2)


def altered(in_parts: Path, folder: Path, change: Callable[[Document], None]) -> Path:
    version = Path(shutil.copytree(in_parts, folder / "raw" / "1"))

    def edit(document: Document) -> None:
        tables = {table["name"]: table["id_map"] for table in document["spec"]["tables"][:4]}
        change(tables)

    edit_manifest(version, edit)
    return version


@pytest.mark.parametrize(
    ("table", "partition", "words"),
    [
        ("user", {"first_rows": [0, 10], "first_hashes": [0]}, "a first hash for each of 2"),
        ("user", {"first_rows": [0, 9, 9], "first_hashes": [0, 1, 2]}, "first_rows: expected asc"),
        ("user", {"first_rows": [1, 9], "first_hashes": [0, 1]}, "first_rows: expected ascending"),
        (
            "user",
            {"first_rows": [0, 9], "first_hashes": [0, 0]},
            "first_hashes: expected ascending",
        ),
        (
            "user",
            {"first_rows": [0, 9], "first_hashes": [0, 2**64]},
            "less than 18446744073709551616",
        ),
        ("user", {"first_rows": [0, 240], "first_hashes": [0, 1]}, "parts of the table's 240 rows"),
        ("user", {"first_rows": [], "first_hashes": []}, "at least 1 item"),
        ("ad", {"first_rows": [0, 2], "first_hashes": [0, 1]}, "the smallest has 2"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    in_parts: Path, tmp_path: Path, table: str, partition: dict[str, list[int]], words: str
) -> None:
    def change(tables: Document) -> None:
        tables[table]["partition"] = partition

    version = altered(in_parts, tmp_path, change)
    with pytest.raises(ArtifactError, match=words):
        open_model(version)


def test_ids_outside_their_parts_are_found(
    in_parts: Path, tmp_path: Path, sharded_infer: Command
) -> None:
    def change(tables: Document) -> None:
        tables["item"]["partition"]["first_hashes"][1] += 2**62

    version = altered(in_parts, tmp_path, change)
    # No request reads another's memory: rows of the table are rows of the table.
    model = open_model(version)
    ids = np.arange(2000)
    assert (model.id_maps["item"].known(ids) < 160).all()
    found = sharded_infer("verify", "-r", tmp_path)
    found.refused("table 'item': id", "expected one of its part")
