import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.row_format import RowFormat
from sharded_infer import IdMapSpec, ModelSpec, Repository, TableSpec, publish
from sharded_infer.artifacts.artifact import Artifact, open_artifact
from sharded_infer.artifacts.manifest import BLOCK_BYTES, dump_manifest
from sharded_infer.artifacts.mapped_id_maps import open_id_maps
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.model_share import ModelShare
from sharded_infer.errors import ArtifactError, StorageError
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.lookups.placement import id_ranges
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.repositories.share_fetch import fetch_share
from sharded_infer.repositories.storage.version_cache import VersionCache
from sharded_infer.repositories.version_copy import copy_version
from tests.support.part_model import Scorer
from tests.support.s3_server import BUCKET, S3Server

ROWS, DIM = 65536, 124  # int8 rows of 128 bytes: 8 MiB a table
HALF = ROWS // 2
SPEC = ModelSpec(
    name="wide",
    tables=tuple(TableSpec(name, ROWS, DIM, format=RowFormat.INT8) for name in ("ads", "user")),
)
PLAN = Plan(
    Topology("hosts", tuple(Device(host=host) for host in range(4))),
    (
        Shard("ads", 0, 0, HALF, 0, DIM),
        Shard("ads", 1, HALF, ROWS, 0, DIM),
        Shard("user", 2, 0, ROWS, 0, 62),
        Shard("user", 3, 0, ROWS, 62, DIM),
    ),
)
# A share of 4 MiB begins and ends within a block; the header's and the last block are needed too.
FILE = "tables/int8-00000.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = Repository(tmp_path_factory.mktemp("wide"))
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: torch.rand(ROWS, DIM, generator=generator) for t in SPEC.tables}
    publish(SPEC, weights, Scorer(), repository)
    return repository


@pytest.fixture
def bucket(folder: Repository, s3: S3Server, s3_url: str, tmp_path: Path) -> Repository:
    copy_version(folder, "wide", 1, Repository(s3_url, VersionCache(tmp_path / "publisher")))
    s3.requests.clear()
    return opened(s3_url, tmp_path / "cache")


def opened(url: str, cache: Path) -> Repository:
    return Repository(url, VersionCache(cache))


def fetched(repository: Repository, host: int | None, *, with_tower: bool = False) -> Artifact:
    artifact = repository.open("wide", 1)
    path = fetch_share(repository, artifact, PLAN, host, with_tower=with_tower)
    return Artifact(path, artifact.manifest)


def check_rows(artifact: Artifact, folder: Repository, host: int) -> None:
    share = ModelShare(artifact, PLAN, host)
    expected = ModelShare(folder.open("wide", 1), PLAN, host)
    for piece, rows in share.rows.pieces.items():
        other = expected.rows.pieces[piece]
        count = rows.rows * piece.table.row_format.row_bytes(piece.columns)
        got, want = (r.memory[r.byte_offset :][:count] for r in (rows, other))
        assert torch.equal(got, want)


def asked(s3: S3Server, repository: Repository, file: str = FILE, model: str = "wide") -> int:
    """Requested bytes of a file, which are then reset."""
    sha256 = repository.manifest(model, 1).files[file].sha256
    ranges = [
        r.removeprefix("bytes=").split("-") for m, p, r in s3.requests if m == "GET" and sha256 in p
    ]
    s3.requests.clear()
    return sum(int(last) + 1 - int(first) for first, last in ranges)


def disk_bytes(path: Path) -> int:
    found = {f.stat().st_ino: 512 * f.stat().st_blocks for f in path.rglob("*") if f.is_file()}
    return sum(found.values())


@pytest.mark.parametrize("host", [0, 1, 2])
def test_a_host_asks_for_the_blocks_of_its_rows_and_keeps_no_more(
    folder: Repository, bucket: Repository, s3: S3Server, tmp_path: Path, host: int
) -> None:
    artifact = fetched(bucket, host)
    share = 2 * HALF * 128 if host == 2 else HALF * 128
    assert share <= asked(s3, bucket) <= share + 3 * BLOCK_BYTES
    assert disk_bytes(tmp_path / "cache") <= share + 3.2 * BLOCK_BYTES
    assert (artifact.path / FILE).stat().st_size == artifact.manifest.files[FILE].bytes
    check_rows(artifact, folder, host)
    assert asked(s3, bucket, "tower.pt2") == asked(s3, bucket, "golden.safetensors") == 0


def test_what_is_here_is_not_asked_for_again(
    folder: Repository, bucket: Repository, s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    fetched(bucket, 0)
    asked(s3, bucket)
    fetched(opened(s3_url, tmp_path / "cache"), 0)
    assert asked(s3, bucket) == 0
    # The block in which both shares meet is here, and so are the first and the last.
    check_rows(fetched(bucket, 1), folder, 1)
    assert asked(s3, bucket) <= HALF * 128


def test_rows_that_were_not_fetched_are_refused_by_name(bucket: Repository) -> None:
    artifact = fetched(bucket, 0)
    with pytest.raises(ArtifactError, match=rf"{FILE}: block 5, bytes .*: was not fetched"):
        ModelShare(artifact, PLAN, 1)


def test_an_interrupted_fetch_goes_on_where_it_was(
    folder: Repository, bucket: Repository, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One block a request, one after another: of several at once the store may refuse the first.
    module = "sharded_infer.repositories.storage.remote_file"
    monkeypatch.setattr(f"{module}._PART_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(f"{module}._AHEAD", 1)
    sha256 = bucket.manifest("wide", 1).files[FILE].sha256

    def is_late(method: str, path: str) -> bool:
        return sum(m == "GET" and sha256 in p for m, p, _ in s3.requests) > 4 and sha256 in path

    s3.refuse = is_late
    with pytest.raises(StorageError, match="access denied"):
        fetched(bucket, 1)
    s3.refuse = None
    first = asked(s3, bucket)
    check_rows(fetched(bucket, 1), folder, 1)
    # The header's block, the last and two of the rows were here.
    assert first >= 4 * BLOCK_BYTES and asked(s3, bucket) <= 3 * BLOCK_BYTES


def test_a_block_that_differs_in_the_store_is_refused_by_name_and_never_kept(
    folder: Repository, bucket: Repository, s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    sha256 = bucket.manifest("wide", 1).files[FILE].sha256
    key = f"{s3_url.removeprefix(f's3://{BUCKET}/')}/wide/files/{sha256}"
    good = s3.content(key)
    altered = bytearray(good)
    altered[6 * BLOCK_BYTES + 5] ^= 1
    s3.put(key, bytes(altered))
    words = (
        rf"files/{sha256} \({FILE}\): altered: block 6, bytes {6 * BLOCK_BYTES} to "
        rf"{7 * BLOCK_BYTES}: its SHA-256 is not the one in {FILE}\.blocks"
    )
    with pytest.raises(ArtifactError, match=words):
        fetched(bucket, 1)
    # It is no block of this host.
    check_rows(fetched(bucket, 0), folder, 0)
    s3.put(key, good)
    check_rows(fetched(bucket, 1), folder, 1)


def test_a_block_that_was_damaged_in_the_cache_is_fetched_again_alone(
    folder: Repository, bucket: Repository, s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    artifact = fetched(bucket, 0)
    bucket.release(artifact.path)
    with (artifact.path / FILE).open("r+b") as file:
        file.seek(2 * BLOCK_BYTES + 7)
        file.write(b"damaged")
    asked(s3, bucket)
    check_rows(fetched(opened(s3_url, tmp_path / "cache"), 0), folder, 0)
    assert asked(s3, bucket) == BLOCK_BYTES


def test_a_version_without_hashes_is_fetched_whole_and_that_is_said(
    folder: Repository, s3: S3Server, s3_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Repository(tmp_path / "old")
    copy_version(folder, "wide", 1, old)
    path = tmp_path / "old" / "wide" / "1"
    manifest = open_artifact(path).manifest
    (path / f"{FILE}.blocks").unlink()
    files = {name: record for name, record in manifest.files.items() if name[-7:] != ".blocks"}
    (path / "manifest.json").write_bytes(dump_manifest(replace(manifest, files=files)))
    bucket = Repository(s3_url, VersionCache(tmp_path / "cache"))
    copy_version(old, "wide", 1, bucket)
    s3.requests.clear()
    for repository in (old, bucket):
        with caplog.at_level(logging.INFO):
            check_rows(fetched(repository, 0), folder, 0)
    said = [record.getMessage() for record in caplog.records]
    assert said == 2 * ["wide version 1 has no hashes of blocks: it is fetched and verified whole"]


@pytest.mark.parametrize(("at", "noticed_by"), [(2 * BLOCK_BYTES, 0), (6 * BLOCK_BYTES, 1)])
def test_in_a_folder_a_host_verifies_its_own_blocks(
    folder: Repository, tmp_path: Path, at: int, noticed_by: int
) -> None:
    other = Repository(tmp_path / "other")
    copy_version(folder, "wide", 1, other)
    with (tmp_path / "other" / "wide" / "1" / FILE).open("r+b") as file:
        file.seek(at)
        file.write(b"altered")
    words = f"{FILE}: altered: block {at // BLOCK_BYTES}, bytes {at} to {at + BLOCK_BYTES}"
    with pytest.raises(ArtifactError, match=words):
        fetched(other, noticed_by)
    artifact = fetched(other, 1 - noticed_by)
    assert artifact.path == tmp_path / "other" / "wide" / "1"
    check_rows(artifact, folder, 1 - noticed_by)


IDS = 2**18


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A table with an id map of 4 MiB, in parts on four hosts."""
    folder = tmp_path_factory.mktemp("parts")
    host = '[[devices]]\ncard = "cpu"\nhost = {}\nmemory = "{}MB"\n'
    topology = folder / "four.toml"
    topology.write_text("".join(host.format(number, 0.6) for number in range(4)))
    table = TableSpec("ads", IDS, 4, format=RowFormat.INT8, id_map=IdMapSpec("zero"))
    ids = np.random.default_rng(1).permutation(IDS) - IDS // 2
    source = IdMapSource("a test's map", IDS, lambda: iter([(ids, np.arange(IDS))]))
    repository = Repository(folder / "models")
    weights = {"ads": torch.rand(IDS, 4)}
    options: dict[str, Any] = {"topologies": (str(topology),), "id_maps": {"ads": source}}
    publish(ModelSpec("parts", (table,)), weights, Scorer(), repository, **options)
    return repository


def test_a_host_fetches_the_ids_of_its_parts(
    in_parts: Repository, s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    copy_version(in_parts, "parts", 1, opened(s3_url, tmp_path / "publisher"))
    stored = opened(s3_url, tmp_path / "cache")
    artifact = stored.open("parts", 1)
    plan, file = artifact.plan(None), "id_maps/ads.index"
    size = artifact.manifest.files[file].bytes
    ids, known = np.arange(IDS) - IDS // 2, np.zeros(IDS, np.int64)
    came = []
    for host in range(4):
        s3.requests.clear()
        path = fetch_share(stored, artifact, plan, host, with_tower=False)
        came.append(asked(s3, stored, file, "parts"))
        for memory in (TableMemory.MAP, TableMemory.HUGE):
            share = ModelShare(Artifact(path, artifact.manifest), plan, host, memory=memory)
            rows = share.id_maps["ads"].known(ids)
            [first] = {piece.first_row for piece in share.rows.pieces}
            [count] = {piece.rows for piece in share.rows.pieces}
            own = (rows >= first) & (rows < first + count)
            assert np.count_nonzero(own) == count
        known += own
    assert (known == 1).all()
    # The first and the last block too, and those in which parts meet; none comes twice.
    assert max(came) <= size / 4 + 3.5 * BLOCK_BYTES and sum(came) <= size
    s3.requests.clear()
    front = fetch_share(opened(s3_url, tmp_path / "front"), artifact, plan, None, with_tower=True)
    assert not (front / file).exists()
    assert not (front / "tables").exists() and (front / "tower.pt2").exists()
    # A front with rows of the table maps all ids, whatever a host has brought.
    other = opened(s3_url, tmp_path / "other")
    fetch_share(other, artifact, plan, 0, with_tower=False)
    whole = fetch_share(other, artifact, plan, 1, with_tower=True)
    [id_map] = open_id_maps(Artifact(whole, artifact.manifest)).values()
    id_map.check()


def test_missing_ids_are_refused_by_name(in_parts: Repository, s3_url: str, tmp_path: Path) -> None:
    copy_version(in_parts, "parts", 1, opened(s3_url, tmp_path / "publisher"))
    stored = opened(s3_url, tmp_path / "cache")
    artifact = stored.open("parts", 1)
    path = fetch_share(stored, artifact, artifact.plan(None), 0, with_tower=False)
    brought = Artifact(path, artifact.manifest)
    ids = id_ranges(artifact.manifest, {"ads"})
    with pytest.raises(ArtifactError, match=r"ads.index: block \d, bytes .*: was not fetched"):
        open_id_maps(brought, ranges=ids)
