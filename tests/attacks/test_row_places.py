"""Versions whose places of ordered rows were damaged, or made by somebody who means harm."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.errors import LostMemoryError
from kernels.ids.row_places import places_bytes, write_places
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError, InputError
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, QuantizationSpec, TableSpec
from tests.attacks.test_artifact import DAMAGES, each_file_refused, listed_anew, refused
from tests.support.manifest_file import Document, edit_manifest
from tests.support.raw_ids import Sum
from tests.support.requests_by_chance import serialized
from tests.support.servers import Command

ROWS = 4096
PLACES = "row_places/item.places"
BYTES = places_bytes(ROWS)
SPEC = ModelSpec(
    "ordered",
    (TableSpec("item", ROWS, 4), TableSpec("shop", 5, 2)),
    DenseSpec({"age": 1}),
    quantization=QuantizationSpec("fp32"),
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = {"item": torch.rand(ROWS, 4), "shop": torch.rand(5, 2)}
    counts = {"item": np.arange(ROWS)}
    folder = tmp_path_factory.mktemp("ordered")
    return publish(SPEC, weights, Sum(), folder, order_rows="frequency", frequencies=counts).path


@pytest.fixture
def version(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "ordered" / "1"))


def with_byte(at: int, to: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + bytes([to]) + content[at + 1 :]


def test_the_honest_copy_is_opened(version: Path) -> None:
    edit_manifest(version, lambda document: None)
    model = open_model(version)
    assert list(model.row_maps) == ["item"]
    native = NativeReader(model.spec, max_batch=ROWS, id_maps=model.row_maps)
    inputs = {
        "item": np.random.default_rng(0).permutation(ROWS),
        "shop": np.zeros(ROWS, np.int64),
        "age": np.zeros((ROWS, 1), np.float32),
    }
    found = native.read_message(serialized(inputs))
    assert found is not None
    rows = found.groups[0].values[:ROWS]
    # Ids were used the more often, the higher they are.
    assert sorted(rows) == [*range(ROWS)] and rows[inputs["item"] == ROWS - 1] < 256
    places = model.row_maps["item"].places  # type: ignore[union-attr]
    assert rows.tolist() == places.rows(inputs["item"]).tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:-1], f"got {ROWS} ids in {BYTES - 1} bytes"),
        (with_byte(64, 1), "class 0 of ids from 256 on: expected row 1, got 0"),
        (with_byte(128, 255), "class 14 of ids from 256 on: expected row 3145, got 3152"),
    ],
)
def test_places_that_are_no_permutation_are_refused_by_file_and_table(
    version: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    path = version / PLACES
    path.write_bytes(change(path.read_bytes()))
    listed_anew(version, PLACES)
    refused(version, f"{PLACES}: table 'item': row places: .*({words})")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name_and_not_waited_for(version: Path, damage: str) -> None:
    each_file_refused(version, damage)


def test_other_places_are_found_by_the_hash(version: Path, sharded_infer: Command) -> None:
    path = version / PLACES
    path.write_bytes(write_places(np.arange(ROWS, dtype=np.uint32)))
    with pytest.raises(ArtifactError, match="item.places"):
        verify_files(open_artifact(version))
    sharded_infer("verify", "-r", version.parents[1]).refused(PLACES)


def test_changes_are_not_published_in_front_of_damaged_places(version: Path) -> None:
    path = version / PLACES
    path.write_bytes(with_byte(64, 1)(path.read_bytes()))
    changes = {"item": ChangedRows(np.array([1]), torch.ones(1, 4))}
    with pytest.raises(ArtifactError, match=f"{PLACES}: .*expected row 1, got 0"):
        publish_delta("ordered", changes, version.parents[1])
    assert [folder.name for folder in version.parent.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda document: document.pop("row_places"),
            r"row_places: expected those of .*\['item'\]",
        ),
        (
            lambda document: document["row_places"].update(shop=PLACES),
            r"row_places: expected those of tables \['item'\], got \['item', 'shop'\]",
        ),
        (lambda document: document["files"].pop(PLACES), "is used but has no size and hash"),
        (lambda document: document.update(format_version=1), "expected 2 for .* ordered rows"),
        (
            lambda document: document["spec"]["tables"][0].update(id_map={"unknown": "zero"}),
            "ordered: expected none beside id_map",
        ),
        (lambda document: document["spec"]["tables"][0].update(ordered=False), "ordered"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    version: Path, edit: Callable[[Document], object], words: str
) -> None:
    edit_manifest(version, edit)
    refused(version, words)


def test_places_that_are_overwritten_or_cut_while_they_are_served_read_nothing_else(
    version: Path,
) -> None:
    model = open_model(version)
    native, portable = (
        made(model.spec, max_batch=8, id_maps=model.row_maps)
        for made in (NativeReader, PortableReader)
    )
    # Ids whose places lie on the file's second page.
    ids = np.array([4093, 4095, 4094])
    inputs = {"item": ids, "shop": np.array([0, 1, 2]), "age": np.zeros((3, 1), np.float32)}
    message = serialized(inputs)
    found = native.read_message(message)
    assert found is not None
    places = model.row_maps["item"].places  # type: ignore[union-attr]
    assert found.groups[0].values[:3].tolist() == places.rows(ids).tolist()
    with (version / PLACES).open("r+b") as file:
        file.seek(BYTES - 192)
        file.write(b"\xff" * 64)
    # The portable reader decides, and refuses.
    assert native.read_message(message) is None
    with pytest.raises(InputError, match="id 4095 has row .*, expected one of 4096"):
        portable.read_message(message)
    os.truncate(version / PLACES, 64)
    with pytest.raises(LostMemoryError, match="item.places: has become shorter"):
        model.check_files()
    assert native.read_message(message) is None
    with pytest.raises(LostMemoryError, match="item.places: has become shorter"):
        portable.read_message(message)
