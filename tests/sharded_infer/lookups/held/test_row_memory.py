import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sharded_infer import ChangedRows, Model, open_model, publish, publish_delta
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model_share import ModelShare
from sharded_infer.errors import InputError
from sharded_infer.lookups.held.row_memory import RowMemory
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.specs.model_spec import GateSpec, QuantizationSpec
from tests.sharded_infer.lookups.test_batch_lookup import pooled_by
from tests.sharded_infer.publishing.rows.test_ordered_tables import (
    ORDERED,
    SPEC,
    TABLES,
    Tower,
    publish_ordered,
    request,
    scores,
    trained,
)
from tests.support.shard_hosts import ThreadedHosts


def published(folder: Path, kind: str = "int8", *, ordered: bool = True, shift: float = 0) -> Path:
    # Two bits of random rows are far from fp32.
    gate = GateSpec(max_score_diff=100.0)
    spec, weights = replace(SPEC, quantization=QuantizationSpec(kind), gate=gate), trained()
    weights["item"] += shift
    if ordered:
        return publish_ordered(folder, weights, spec)
    return publish(spec, weights, Tower(), folder).path


def in_tiers(model: Model) -> RowMemory:
    assert model.row_memory is not None
    return model.row_memory


@pytest.mark.parametrize(
    ("format_name", "ordered"), [("int8", False), ("int8", True), ("int4", True), ("fp32", True)]
)
def test_scores_are_those_of_rows_in_memory(
    tmp_path: Path, format_name: str, ordered: bool
) -> None:
    path = published(tmp_path, format_name, ordered=ordered)
    mapped = open_model(path)
    for memory_bytes in (0, 500, 2000, 1 << 20):
        tiered = open_model(path, row_memory_bytes=memory_bytes)
        assert in_tiers(tiered).memory_bytes <= memory_bytes
        # The second time, cached rows are read.
        for seed in (0, 1, 2, 0, 1, 2):
            inputs = request(17, seed)
            assert np.array_equal(scores(tiered, inputs), scores(mapped, inputs))
        check_golden(tiered)


def test_memory_holds_first_what_is_used_most(tmp_path: Path) -> None:
    memory = in_tiers(open_model(published(tmp_path), row_memory_bytes=2000))
    for name, (tier,) in memory.tiers.items():
        kept = next(kept for kept in memory.planned if kept.table == name)
        assert tier.hot_rows + tier.cached_rows <= kept.rows <= tier.rows
        if name in ORDERED and kept.rows > 8:
            assert tier.hot_rows > 0
    everything = in_tiers(open_model(published(tmp_path / "whole"), row_memory_bytes=1 << 20))
    for (tier,) in everything.tiers.values():
        assert tier.hot_rows == tier.rows and tier.cached_rows == 0


def test_a_release_keeps_the_rows_in_memory_that_did_not_change(tmp_path: Path) -> None:
    published(tmp_path)
    first = open_model(tmp_path / "ordered" / "1", row_memory_bytes=2000)
    before = {name: tiers for name, (tiers,) in in_tiers(first).tiers.items()}
    for seed in (0, 1, 2):
        scores(first, request(17, seed))
    # A delta has its base's rows, a whole version those of files that are the same. `page` lies in
    # the file of `item`.
    changes = {"item": ChangedRows(np.array([3]), torch.ones(1, 8))}
    publish_delta("ordered", changes, tmp_path)
    published(tmp_path, shift=1)
    for version, others in (("2", set()), ("3", {"item", "page"})):
        path = tmp_path / "ordered" / version
        model = open_model(path, row_memory_bytes=2000)
        tiers = {name: tiers for name, (tiers,) in in_tiers(model).tiers.items()}
        assert {name for name in tiers if tiers[name] is not before[name]} == others
        for seed in (0, 1, 2):
            inputs = request(17, seed)
            assert np.array_equal(scores(model, inputs), scores(open_model(path), inputs))
    # What nobody uses is closed; the next version reads its rows anew.
    held = before["shop"].counts().hot + before["shop"].counts().cached
    assert held > 0
    del first, before, model, tiers
    gc.collect()
    again = open_model(tmp_path / "ordered" / "1", row_memory_bytes=2000)
    assert all(sum(tier.counts()[:3]) == 0 for (tier,) in in_tiers(again).tiers.values())


def test_a_front_and_a_host_have_tiers_of_their_own_rows(tmp_path: Path) -> None:
    artifact = open_artifact(published(tmp_path))
    shards = tuple(
        Shard(table.name, host, first, last, 0, table.dim)
        for table in TABLES
        for host, first, last in ((0, 0, table.rows // 3), (1, table.rows // 3, table.rows))
    )
    plan = Plan(Topology("hosts", (Device(host=0), Device(host=1))), shards)
    whole = Model(artifact, plan)
    share = ModelShare(artifact, plan, 1, row_memory_bytes=700)
    assert share.rows.row_memory is not None
    assert {name: tier.rows for name, (tier,) in share.rows.row_memory.tiers.items()} == {
        table.name: table.rows - table.rows // 3 for table in TABLES
    }
    with ThreadPoolExecutor(1) as threads:
        hosts = ThreadedHosts({1: partial(pooled_by, share.lookups)}, threads)
        front = Model(artifact, plan, front=Front(hosts, 0), row_memory_bytes=300)
        for seed in (0, 1, 2, 0):
            inputs = request(9, seed)
            assert np.array_equal(scores(front, inputs), scores(whole, inputs))


def test_a_table_cut_by_columns_is_refused(tmp_path: Path) -> None:
    artifact = open_artifact(published(tmp_path))
    halves = (Shard("item", 0, 0, 300, 0, 4), Shard("item", 1, 0, 300, 4, 8))
    others = (Shard(table.name, 0, 0, table.rows, 0, table.dim) for table in TABLES[1:])
    plan = Plan(Topology("two", (Device(), Device())), (*halves, *others))
    with pytest.raises(InputError, match="table 'item': its rows are cut by columns"):
        Model(artifact, plan, row_memory_bytes=100)
