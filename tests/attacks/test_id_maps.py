"""Versions whose id maps were damaged, or made by somebody who means harm."""

import io
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernels.errors import LostMemoryError
from kernels.ids.id_index import IdIndex
from kernels.ids.index_layout import BUCKET
from kernels.ids.index_writer import write_id_index
from sharded_infer.engines.model import open_model
from sharded_infer.errors import RequestError
from tests.attacks.test_artifact import DAMAGES, each_file_refused, listed_anew, refused
from tests.support.manifest_file import Document, edit_manifest
from tests.support.raw_ids import SPEC, RawModel, publish_raw, raw_request
from tests.support.servers import Command

INDEX = "id_maps/user.index"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> RawModel:
    return publish_raw(tmp_path_factory.mktemp("raw"), topologies=("cpu:1",))


@pytest.fixture
def version(published: RawModel, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published.path, tmp_path / "raw" / "1"))


def rewritten(version: Path, change: Callable[[bytes], bytes]) -> None:
    """Alters an index; size and hash agree with the manifest then."""
    path = version / INDEX
    path.write_bytes(change(path.read_bytes()))
    listed_anew(version, INDEX)


def with_number(place: int, form: str, number: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        altered = bytearray(content)
        struct.pack_into(form, altered, place, number)
        return bytes(altered)

    return change


def of_map(**changed: object) -> Callable[[Document], object]:
    return lambda document: document["spec"]["tables"][0]["id_map"].update(changed)


def of_table(number: int, **changed: object) -> Callable[[Document], object]:
    return lambda document: document["spec"]["tables"][number].update(changed)


def test_the_honest_copy_is_opened(version: Path) -> None:
    edit_manifest(version, lambda document: None)
    assert list(open_model(version).id_maps) == [table.name for table in SPEC.mapped_tables]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name_and_not_waited_for(version: Path, damage: str) -> None:
    each_file_refused(version, damage)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:63], "expected a header of 64 bytes, got 63"),
        (lambda content: content + b"\0" * 64, "expected .* bytes for"),
        (with_number(8, "<I", 2), "expected version 1, got 2"),
        (with_number(32, "<Q", 61), "is for a table of 61 rows, table 'user' has 60"),
    ],
)
def test_a_wrong_header_is_refused_by_file(
    version: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    """The index's own tests have the others."""
    rewritten(version, change)
    refused(version, f"{INDEX}: .*{words}|{words}")


def test_whatever_the_buckets_hold_no_row_is_outside_its_table(
    published: RawModel, version: Path
) -> None:
    generator = np.random.default_rng(5)

    def chance(content: bytes) -> bytes:
        return content[:64] + generator.bytes(len(content) - 64)

    for _ in range(20):
        rewritten(version, chance)
        index = IdIndex.open((version / INDEX).read_bytes())
        ids = np.array([*published.maps["user"], *generator.integers(-99, 99, 500)], np.int64)
        stored = np.frombuffer((version / INDEX).read_bytes()[64:], "<i8").copy()
        for asked in (ids, stored):
            rows = index.rows(asked)
            assert -1 <= rows.min() <= rows.max() < 60
    # Golden requests have ids of the map that was published.
    model = open_model(version)
    with pytest.raises(RequestError, match="is not in the id map of table 'user'"):
        model.predict(raw_request(published, 30, 0)[0])


def test_verify_reads_all_of_an_id_map(version: Path, sharded_infer: Command) -> None:
    asked = ("verify", "-r", version.parents[1])
    assert sharded_infer(*asked, "--json").json()["version"] == 1

    def with_another_id(content: bytes) -> bytes:
        buckets = np.frombuffer(content[64:], BUCKET).copy()
        at = int(np.flatnonzero((buckets["last"] & 255) >= 2)[0])
        buckets["keys"][at, 0] ^= np.uint64(1)
        return content[:64] + buckets.tobytes()

    rewritten(version, with_another_id)
    sharded_infer(*asked).refused("table 'user'", "is of bucket")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.pop("id_maps"), r"id_maps: expected those of tables .*, got \[\]"),
        (lambda d: d["id_maps"].pop("user"), "id_maps: expected those of tables"),
        (
            lambda d: d["id_maps"].update(country="id_maps/user.index"),
            "id_maps: expected those of tables",
        ),
        (
            lambda d: d.update(format_version=1),
            "format_version: expected 2 for 4 tables with raw ids, .* and no base, got 1",
        ),
        (lambda d: d.update(format_version=3), "format_version: expected 1 or 2, got '3'"),
        (lambda d: d["id_maps"].update(user="../user.index"), "leaves the version's folder"),
        (lambda d: d["id_maps"].update(user="elsewhere"), "'elsewhere' is used but has no size"),
        (
            lambda d: d["spec"]["tables"][0]["id_map"].pop("unknown"),
            "does not say what unknown means",
        ),
        (of_map(unknown={"rows": [60]}), "id_map.unknown.rows: expected rows, 0 to 59, got 60"),
        (of_map(unknown={"rows": []}), "should have at least 1 item"),
        (of_map(unknown="what"), "unknown"),
        (of_map(unknown={"rowz": [1]}), "rowz"),
        (
            of_map(unknown={"rows": 61, "buckets": 1}),
            "expected the table's 60 rows in equal buckets, got 61 in 1",
        ),
        (of_map(seed=1), "seed: 1 without strings"),
        (of_map(strings="murmur3_x64_128", seed=2**32), "seed: expected one of 32 bits"),
        (of_table(0, padding_idx=0), "expected none beside id_map"),
        (of_map(hashed="xxh3_64"), "unknown: expected none beside hashed"),
        (
            of_table(0, id_map={"hashed": "xxh3_64", "seed": 0}),
            r"id_maps: expected those of tables \['item', 'shop', 'ad'\], got \['user'",
        ),
        (
            of_table(4, id_map={"hashed": "xxh3_64", "seed": 0}),
            "out_of_range: expected none beside id_map",
        ),
        (of_map(hash_seed=1), "hash_seed: 1 without hashed"),
        (of_table(0, out_of_range="modulo"), "expected none beside id_map"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    version: Path, edit: Callable[[Document], object], words: str
) -> None:
    edit_manifest(version, edit)
    refused(version, words)


def test_a_version_without_id_maps_is_not_of_format_2(published: RawModel, tmp_path: Path) -> None:
    version = Path(shutil.copytree(published.plain, tmp_path / "1"))
    edit_manifest(version, lambda document: document.update(format_version=2))
    refused(
        version,
        "expected 1 for 0 tables with raw ids, 0 with ordered rows, 0 sequences and no base, got 2",
    )


def test_an_id_map_that_shrinks_while_it_is_served_is_an_error(
    published: RawModel, version: Path
) -> None:
    model = open_model(version)
    inputs, _ = raw_request(published, 9, 1)
    model.predict(inputs)
    (version / INDEX).write_bytes(b"")
    with pytest.raises(LostMemoryError, match=r"user.index: has become shorter"):
        model.predict(inputs)
    with pytest.raises(LostMemoryError, match=r"user.index: has become shorter"):
        model.check_files()


def test_the_index_of_another_table_is_refused(version: Path, sharded_infer: Command) -> None:
    edit_manifest(version, lambda document: document["id_maps"].update(user="id_maps/item.index"))
    refused(version, "item.index: is for a table of 40 rows, table 'user' has 60")
    # Where both have as many rows, the ids of the golden requests are not there.
    other = io.BytesIO()
    write_id_index([(np.arange(60), np.arange(60))], 60, 60, other)
    edit_manifest(version, lambda document: document["id_maps"].update(user=INDEX))
    rewritten(version, lambda _: other.getvalue())
    words = "is not in the id map of table 'user'"
    sharded_infer("verify", "-r", version.parents[1]).refused("user_id", words)
