from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.ids.partition import parts_of
from sharded_infer import ChangedRows, Model, compact, open_model, publish_delta
from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.lookups.placement import mapped_by_hosts, place_stored
from sharded_infer.specs.id_map_spec import IdPartition
from tests.serving.remote_lookups.test_raw_fronts import front_of
from tests.support.raw_cluster import MAPS, SPEC, publish_raw_parts, raw_inputs
from tests.support.raw_ids import Ids

HOSTS, DIM = 2, 8
ITEMS = np.array([*MAPS["item"]])
FREE_OF_ITEM = 160 - len(ITEMS)
# The id whose row those read too that the table does not know.
[OF_UNKNOWN] = [raw for raw, row in MAPS["shop"].items() if row == 19]
SHOP_COLUMN = 16 + 2 * DIM


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return publish_raw_parts(tmp_path / "models", HOSTS)


def partition_of(version: Path, table: str = "item") -> IdPartition | None:
    tables = open_artifact(version).manifest.model_spec().tables
    return next(one.id_map and one.id_map.partition for one in tables if one.name == table)


def changed(ids: Ids, removed: Ids | None = None, dim: int = DIM) -> ChangedRows:
    values = torch.randn(len(ids), dim, generator=torch.Generator().manual_seed(5))
    return ChangedRows(ids, values, removed=ITEMS[:0] if removed is None else removed)


def new_ids(partition: IdPartition, part: int, count: int) -> Ids:
    """Unknown ids, of one part."""
    ids = np.arange(10**6, 10**6 + 1000)
    return ids[parts_of(ids, partition.first_hashes) == part][:count]


def asked_of(front: Model, whole: Model) -> None:
    for seed in range(3):
        scores = [model.predict(raw_inputs(9, seed))["score"] for model in (front, whole)]
        np.testing.assert_array_equal(*scores)


def test_new_ids_get_free_rows_of_their_parts(base: Path) -> None:
    partition = partition_of(base)
    assert partition is not None
    gone = ITEMS[parts_of(ITEMS, partition.first_hashes) == 0][:2]
    before = open_model(base).id_maps["item"]
    new = np.concatenate([new_ids(partition, 0, 2), new_ids(partition, 1, 1)])
    changes = {"item": changed(np.concatenate([ITEMS[9:12], new]), gone)}
    path = publish_delta("raw", changes, base.parents[1]).path
    verify_files(open_artifact(path), blocks=True)
    after = open_model(path)
    assert partition_of(path) == partition
    id_map = after.id_maps["item"]
    id_map.check()
    assert id_map.table.rows == before.table.rows
    rows = id_map.known(new)
    firsts = np.array(partition.first_rows)
    assert (np.searchsorted(firsts, rows, "right") - 1).tolist() == [0, 0, 1]
    assert not set(rows.tolist()) & set(before.known(np.setdiff1d(ITEMS, gone)).tolist())
    assert (id_map.known(gone) == -1).all()
    front, hosts = front_of(path)
    assert "item" not in front.id_maps
    asked_of(front, after)
    whole = compact(base.parents[1], "raw").path
    assert partition_of(whole) == partition
    asked_of(front_of(whole)[0], after)
    assert any(group.raw for asked in hosts.asked for of in asked.values() for group in of)


def test_a_part_without_free_rows_ends_parts(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    partition = partition_of(base)
    assert partition is not None
    new = new_ids(partition, 0, FREE_OF_ITEM + 1)
    path = publish_delta("raw", {"item": changed(new)}, base.parents[1]).path
    assert "table 'item': a part of its rows has no free row for new ids" in caplog.text
    assert partition_of(path) is None and partition_of(path, "user") is not None
    artifact = open_artifact(path)
    verify_files(artifact, blocks=True)
    placed = place_stored(artifact.plan(None), artifact)
    theirs = mapped_by_hosts(placed, artifact.manifest.model_spec())
    assert "item" not in theirs and "user" in theirs
    whole = open_model(path)
    assert (whole.id_maps["item"].known(new) >= 160).all()
    front, _ = front_of(path)
    assert "item" in front.id_maps
    asked_of(front, whole)


def test_a_row_that_unknown_ids_share_changes_in_every_part(base: Path) -> None:
    partition = partition_of(base, "shop")
    assert partition is not None
    change = changed(np.array([OF_UNKNOWN]), dim=4)
    model = open_model(publish_delta("raw", {"shop": change}, base.parents[1]).path)
    strange = np.arange(10**6, 10**6 + 50)
    assert len(np.unique(parts_of(strange, partition.first_hashes))) == len(partition.first_rows)
    nothing = {f"{name}.lengths": np.zeros(50, np.int64) for name in SPEC.sparse_inputs}
    empty = {name: np.empty(0, np.int64) for name in SPEC.sparse_inputs}
    asked = {**nothing, **empty, "shop": strange, "shop.lengths": np.ones(50, np.int64)}
    request = make_input(model.spec, {**asked, "age": np.zeros((50, 1), np.float32)})
    found = model.engine.embeddings(request)[:50, SHOP_COLUMN : SHOP_COLUMN + 4]
    assert change.values is not None
    assert torch.equal(found, change.values.expand(50, 4))
    asked_of(front_of(model.artifact.path)[0], model)
