from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.row_format import RowFormat
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import BLOCK_BYTES
from sharded_infer.artifacts.mapped_id_maps import open_id_maps
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.model_share import ModelShare
from sharded_infer.errors import ArtifactError
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.lookups.placement import id_ranges
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.share_fetch import fetch_share
from sharded_infer.repositories.storage.version_cache import VersionCache
from sharded_infer.repositories.version_copy import copy_version
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.sharded_infer.repositories.test_share_fetch import Scorer, opened
from tests.support.s3_server import S3Server

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
    publish(
        ModelSpec("parts", (table,)),
        weights,
        Scorer(),
        repository,
        topologies=(str(topology),),
        id_maps={"ads": source},
    )
    return repository


def test_a_host_fetches_the_ids_of_its_parts(
    in_parts: Repository, s3: S3Server, s3_url: str, tmp_path: Path
) -> None:
    copy_version(in_parts, "parts", 1, Repository(s3_url, VersionCache(tmp_path / "publisher")))
    stored = opened(s3_url, tmp_path / "cache")
    artifact = stored.open("parts", 1)
    plan, file = artifact.plan(None), "id_maps/ads.index"
    size = artifact.manifest.files[file].bytes
    ids, known = np.arange(IDS) - IDS // 2, np.zeros(IDS, np.int64)
    came = []
    for host in range(4):
        s3.requests.clear()
        path = fetch_share(stored, artifact, plan, host, with_tower=False)
        sha256 = artifact.manifest.files[file].sha256
        ranges = [
            r.removeprefix("bytes=").split("-")
            for m, p, r in s3.requests
            if m == "GET" and sha256 in p
        ]
        came.append(sum(int(last) + 1 - int(first) for first, last in ranges))
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
    # A front with rows of the table maps all ids, whatever a host has brought.
    other = opened(s3_url, tmp_path / "other")
    fetch_share(other, artifact, plan, 0, with_tower=False)
    whole = fetch_share(other, artifact, plan, 1, with_tower=True)
    [id_map] = open_id_maps(Artifact(whole, artifact.manifest)).values()
    id_map.check()


def test_ids_that_were_not_fetched_are_refused_by_name(
    in_parts: Repository, s3_url: str, tmp_path: Path
) -> None:
    copy_version(in_parts, "parts", 1, Repository(s3_url, VersionCache(tmp_path / "publisher")))
    stored = opened(s3_url, tmp_path / "cache")
    artifact = stored.open("parts", 1)
    path = fetch_share(stored, artifact, artifact.plan(None), 0, with_tower=False)
    brought = Artifact(path, artifact.manifest)
    ids = id_ranges(artifact.manifest, {"ads"})
    with pytest.raises(ArtifactError, match=r"ads.index: block \d, bytes .*: was not fetched"):
        open_id_maps(brought, ranges=ids)
