"""Versions whose raw ids, ordered rows, sequence or base were damaged, or are hostile."""

import io
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from kernels.errors import LostMemoryError
from kernels.ids.index_layout import BUCKET
from kernels.ids.index_writer import id_index_parts
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.manifest import GOLDEN_NAME
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError, InputError
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.attacks.test_artifact import DAMAGES, listed_anew, refused
from tests.support.manifest_file import Document, edit_manifest
from tests.support.raw_ids import source_of
from tests.support.requests_by_chance import serialized
from tests.support.servers import Command

ORDERED_ROWS = 4096
SPEC = ModelSpec(
    "featured",
    (
        TableSpec("user", 60, 4, id_map=IdMapSpec("error")),
        TableSpec("shop", 20, 5, id_map=IdMapSpec(SharedRows((3, 7, 19)))),
        TableSpec("country", 30, 3, out_of_range="ignore"),
        TableSpec("ad", ORDERED_ROWS, 4),
        TableSpec("item", 30, 8, features=("candidate", "clicks")),
        TableSpec("action", 5, 4),
    ),
    tower=TowerSpec(user_inputs=("seen",)),
    quantization=QuantizationSpec("fp32"),
    sequences={"seen": SequenceSpec(16, features=("clicks", "action"), dense={"age": 1})},
)
# Raw ids of users and shops; the row of each is its position.
RAW_IDS: dict[str, NDArray[np.int64]] = {
    table.name: np.random.default_rng(0).integers(-(2**63), 2**63 - 1, table.rows - 5)
    for table in SPEC.mapped_tables
}


class Sums(nn.Module):
    def forward(
        self, seen: Tensor, seen_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        user = seen.sum((1, 2)) + age.sum((1, 2)) + seen_lengths.to(torch.float32)
        return user + embeddings.sum(1)


def publish_featured(repository: Path) -> Path:
    """Publish version 1 and, with a changed row and a new one, version 2; return its folder."""
    generator = torch.Generator().manual_seed(3)
    publish(
        SPEC,
        {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in SPEC.tables},
        Sums(),
        repository,
        id_maps={
            name: source_of({raw: row for row, raw in enumerate(ids.tolist())})
            for name, ids in RAW_IDS.items()
        },
        order_rows="frequency",
        frequencies={"ad": np.arange(ORDERED_ROWS)},
    )
    changes = {"country": ChangedRows(np.array([1, 30]), torch.ones(2, 3))}
    return publish_delta(SPEC.name, changes, repository).path


INDEX, PLACES = "id_maps/user.index", "row_places/ad.places"
Edit = Callable[[Document], object]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_featured(tmp_path_factory.mktemp("featured"))


@pytest.fixture
def version(published: Path, tmp_path: Path) -> Path:
    """A copy without its base."""
    return Path(shutil.copytree(published, tmp_path / "featured" / "2"))


def rewritten(version: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Alters a file; size and hash agree with the manifest then."""
    (version / name).write_bytes(change((version / name).read_bytes()))
    listed_anew(version, name)


def with_number(place: int, form: str, number: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        altered = bytearray(content)
        struct.pack_into(form, altered, place, number)
        return bytes(altered)

    return change


def test_the_honest_copy_is_opened(version: Path) -> None:
    edit_manifest(version, lambda document: None)
    model = open_model(version)
    assert list(model.row_maps) == ["user", "shop", "ad"]
    assert model.spec.sequences == SPEC.sequences
    assert {name.partition("/")[0] for name in open_artifact(version).manifest.files} == {
        "golden.safetensors", "id_maps", "overlays", "plans", "report.json", "row_places", "tables",
        "tower.pt2",
    }  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damaged_file_is_refused_by_name_without_waiting(version: Path, damage: str) -> None:
    make, words = DAMAGES[damage]
    for name in open_artifact(version).manifest.files:
        path = version / name
        content = path.read_bytes()
        make(path)
        refused(version, f"/{name}: {words}")
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(content)
    open_model(version)


def of_table(name: str, **changed: object) -> Edit:
    at = [table.name for table in SPEC.tables].index(name)
    return lambda document: document["spec"]["tables"][at].update(changed)


def of_steps(name: str, **steps: object) -> Edit:
    return of_table(name, id_steps=steps)


def of_map(**changed: object) -> Edit:
    return lambda document: document["spec"]["tables"][0]["id_map"].update(changed)


def of_parts(rows: list[int], hashes: list[int], table: int = 0) -> Edit:
    parts = {"first_rows": rows, "first_hashes": hashes}
    return lambda document: document["spec"]["tables"][table]["id_map"].update(partition=parts)


def of_sequence(**changed: object) -> Edit:
    return lambda document: document["spec"]["sequences"]["seen"].update(changed)


def renamed_sequence(document: Document) -> None:
    spec = document["spec"]
    spec["sequences"]["other"] = spec["sequences"].pop("seen")
    spec["tower"]["user_inputs"] = ["other"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.pop("id_maps"), r"id_maps: expected those of tables .*, got \[\]"),
        (lambda d: d["id_maps"].update(country=INDEX), "id_maps: expected those of tables"),
        (lambda d: d.pop("row_places"), r"row_places: expected those of tables \['ad'\]"),
        (lambda d: d["id_maps"].update(user="../user.index"), "leaves the version's folder"),
        (lambda d: d["id_maps"].update(user="elsewhere"), "'elsewhere' is used but has no size"),
        (lambda d: d["files"].pop(PLACES), "is used but has no size and hash"),
        (
            lambda d: d.update(format_version=1),
            "expected 2 for 2 tables with raw ids, 1 with ordered rows, 0 with id_steps, "
            "1 sequence and a base",
        ),
        # Unknown ids, and hash functions.
        (of_map(unknown=None), "does not say what unknown means|agree"),
        (of_map(unknown={"rows": [60]}), "id_map.unknown.rows: expected rows, 0 to 59, got 60"),
        (of_map(unknown={"rows": []}), "should have at least 1 item"),
        (
            of_map(unknown={"rows": 61, "buckets": 1}),
            "expected the table's 60 rows in equal buckets, got 61 in 1",
        ),
        (of_map(seed=1), "seed: 1 without strings"),
        (of_map(strings="murmur3_x64_128", seed=2**32), "seed: expected one of 32 bits"),
        (of_table("user", out_of_range="modulo"), "expected none beside id_map"),
        (of_table("ad", id_map={"unknown": "zero"}), "ordered: expected none beside id_map"),
        (of_table("ad", ordered=False), "ordered"),
        (
            of_table("user", id_map={"hashed": "xxh3_64", "seed": 0}),
            r"id_maps: expected those of tables \['shop'\], got \['user'",
        ),
        # Steps of ids; the spec's own tests have more.
        (of_steps("ad", ad=[["power", 2]]), r"id_steps: ad\[0\]\[0\]: .*'at_most', got 'power'"),
        (of_steps("ad", ad=[["divide", 0]]), "ad: divide: expected a number of at least 1, got 0"),
        (of_steps("ad", ad=[["add", 1]] * 17), "'ad': id_steps: ad: .* at most 16 items"),
        (of_steps("ad", ads=[["add", 1]]), "id_steps: 'ads' is not one of the table's features"),
        (of_steps("user", user=[["add", 1]]), "'user': id_steps: expected none beside id_map"),
        # Parts of ids.
        (of_parts([0, 10], [0]), "a first hash for each of 2"),
        (of_parts([0, 9, 9], [0, 1, 2]), "first_rows: expected ascending"),
        (of_parts([1, 9], [0, 1]), "first_rows: expected ascending"),
        (of_parts([0, 9], [0, 0]), "first_hashes: expected ascending"),
        (of_parts([0, 9], [0, 2**64]), "less than 18446744073709551616"),
        (of_parts([0, 60], [0, 1]), "parts of the table's 60 rows"),
        (of_parts([], []), "at least 1 item"),
        (of_parts([0, 2], [0, 1], table=1), "the smallest has 2"),
        # The base.
        (lambda d: d.pop("base"), "overlays: expected one or more, and a base, or none"),
        (lambda d: d.update(overlays=[]), "overlays: expected one or more, and a base, or none"),
        (lambda d: d.update(overlays=["../1/tower.pt2"]), "overlays.0"),
        (
            lambda d: d.update(overlays=[*map(str, range(1025))]),
            "overlays: expected at most 1024 files of changed rows, .*, got 1025",
        ),
        (lambda d: d.update(overlays=["overlays/none"]), "is used but has no size and hash"),
        (lambda d: d.pop("overlays"), "its pieces hold 30 of 31 rows"),
        (lambda d: d["base"].update(version=2), "base.version: expected one before 2, got 2"),
        (lambda d: d["base"].update(version=0), "base.version"),
        (lambda d: d["base"].update(sha256="0"), "base.sha256"),
        (lambda d: d["base"].update(changes=""), "base.changes"),
        # The sequence; the spec's own tests have more.
        (lambda d: d["spec"].pop("sequences"), "user_inputs: 'seen' is no dense input"),
        (
            lambda d: d["spec"]["sequences"].update(o={"max_length": 4, "features": ["clicks"]}),
            "'clicks' is defined more than once",
        ),
        (of_sequence(features=["clicks", "clocks"]), "'clocks' is not one of the tables' features"),
        (of_sequence(max_length=2**16 + 1), "sequences: seen: max_length: "),
        (of_sequence(dense={"age": 2**40}), "sequences: seen: dense: age: "),
        (of_sequence(pad="both"), "sequences: seen: pad: "),
        (of_sequence(ids=["user"]), "ids: 'user' is not one of the sequence's features: clicks"),
        (of_sequence(ids=["clicks", "clicks"]), "ids: feature 'clicks' is named more than once"),
        (of_sequence(ids="clicks"), "sequences: seen: ids: "),
        (of_sequence(ids=["clicks"], dense={"clicks_ids": 1}), "'clicks_ids' has the name of a"),
        (of_sequence(pickle="os.system"), "sequences: seen: pickle: "),
        # A tower of other sequences.
        *(
            (edit, r"tower\.pt2|golden\.safetensors")
            for edit in (
                of_sequence(max_length=17),
                of_sequence(dense={"age": 2}),
                of_sequence(dense={"years": 1}),
                of_sequence(ids=["clicks"]),
                of_sequence(features=["clicks"]),
                of_sequence(pad_to="max_length", max_length=20),
                renamed_sequence,
            )
        ),
    ],
)
def test_a_contradictory_manifest_is_refused(version: Path, edit: Edit, words: str) -> None:
    edit_manifest(version, edit)
    refused(version, words)


def test_golden_requests_of_other_lengths_are_refused(version: Path) -> None:
    tensors = load_file(version / GOLDEN_NAME)
    # As many in all: one sample's clicks are another's.
    tensors["sparse.lengths"][-1] = np.roll(tensors["sparse.lengths"][-1], 1)
    save_file(tensors, version / GOLDEN_NAME)
    listed_anew(version, GOLDEN_NAME)
    with pytest.raises(ArtifactError, match=r"golden.* long, but 'clicks' of sequence 'seen' is"):
        check_golden(open_model(version))


# Indexes and places whose hash is right; their own tests have what else is wrong with them.


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (INDEX, with_number(8, "<I", 2), "expected version 1, got 2"),
        (INDEX, with_number(32, "<Q", 61), "is for a table of 61 rows, table 'user' has 60"),
        (PLACES, lambda content: content[:-1], f"table 'ad': .*got {ORDERED_ROWS} ids in "),
        (PLACES, with_number(64, "<B", 1), "table 'ad': .*256 on: expected row 1, got 0"),
    ],
)
def test_wrong_ids_are_refused_by_file_and_table(
    version: Path, name: str, change: Callable[[bytes], bytes], words: str
) -> None:
    rewritten(version, name, change)
    refused(version, f"{Path(name).name}: .*{words}")


def with_another_id(content: bytes) -> bytes:
    buckets = np.frombuffer(content[64:], BUCKET).copy()
    at = int(np.flatnonzero((buckets["last"] & 255) >= 2)[0])
    buckets["keys"][at, 0] ^= np.uint64(1)
    return content[:64] + buckets.tobytes()


def test_verify_reads_all_of_an_index(version: Path, sharded_infer: Command) -> None:
    asked = ("verify", "-r", version.parents[1])
    assert sharded_infer(*asked, "--json").json()["version"] == 2
    sound = (version / INDEX).read_bytes()
    rewritten(version, INDEX, with_another_id)
    sharded_infer(*asked).refused("table 'user'", "is of bucket")
    # An index of as many other ids lacks those of the golden requests.
    other = io.BytesIO()
    other.writelines(id_index_parts([(np.arange(60), np.arange(60))], 60, 60))
    rewritten(version, INDEX, lambda _: other.getvalue())
    sharded_infer(*asked).refused("user", "is not in the id map of table 'user'")
    rewritten(version, INDEX, lambda _: sound)
    edit_manifest(version, of_parts([0, 30], [0, 2**63]))
    # No request reads another's memory: rows of the table are rows of the table.
    assert (open_model(version).id_maps["user"].known(RAW_IDS["user"]) < 60).all()
    sharded_infer(*asked).refused("table 'user': id", "expected one of its part")


def test_an_index_that_shrinks_while_it_is_served_is_an_error(version: Path) -> None:
    model = open_model(version)
    inputs = {"user": RAW_IDS["user"]}
    model.predict(inputs)
    (version / INDEX).write_bytes(b"")
    for use in (lambda: model.predict(inputs), model.check_files):
        with pytest.raises(LostMemoryError, match=r"user.index: has become shorter"):
            use()


def test_changes_are_not_published_in_front_of_damaged_places(version: Path) -> None:
    path = version / PLACES
    path.write_bytes(with_number(64, "<B", 1)(path.read_bytes()))
    changes = {"ad": ChangedRows(np.array([1]), torch.ones(1, 4))}
    with pytest.raises(ArtifactError, match=f"{PLACES}: .*expected row 1, got 0"):
        publish_delta(SPEC.name, changes, version.parents[1])
    assert [folder.name for folder in version.parent.iterdir()] == ["2"]


def test_places_overwritten_or_cut_while_they_are_served_read_nothing_else(version: Path) -> None:
    model = open_model(version)
    readers: Any = (NativeReader, PortableReader)
    native, portable = (make(model.spec, max_batch=8, id_maps=model.row_maps) for make in readers)
    # Ids whose places lie on the file's second page.
    ids = np.array([4093, 4095, 4094])
    message = serialized({"ad": ids})
    found = native.read_message(message)
    places = model.row_maps["ad"].places  # type: ignore[union-attr]
    at = found.groups[0].values.tolist()
    assert at == places.rows(ids).tolist()
    size = (version / PLACES).stat().st_size
    with (version / PLACES).open("r+b") as file:
        file.seek(size - 192)
        file.write(b"\xff" * 64)
    # The portable reader decides, and refuses.
    assert native.read_message(message) is None
    with pytest.raises(InputError, match="id 4095 has row .*, expected one of 4096"):
        portable.read_message(message)
    os.truncate(version / PLACES, 64)
    assert native.read_message(message) is None
    for use in (lambda: portable.read_message(message), model.check_files):
        with pytest.raises(LostMemoryError, match="ad.places: has become shorter"):
            use()
