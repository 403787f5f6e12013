import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sharded_infer.artifacts.artifact import Artifact, open_artifact
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.model_share import ModelShare
from sharded_infer.errors import ArtifactError, DeviceError, NotFoundError, PlanError
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.sharded_infer.lookups.test_batch_lookup import on_hosts, pooled_by
from tests.support.model_shares import open_share
from tests.support.shard_hosts import ThreadedHosts

# Rows, columns and a whole table, each on several hosts; `country` is on all of them.
SHARDS = (
    Shard("ads", 0, 0, 20, 0, 8),
    Shard("ads", 1, 20, 50, 0, 8),
    Shard("user", 2, 0, 31, 0, 2),
    Shard("user", 0, 0, 31, 2, 5),
    Shard("item", 1, 0, 40, 0, 6),
)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as running:
        yield running


@pytest.fixture
def artifact(published_version: Path) -> Artifact:
    return open_artifact(published_version)


def plan_on(hosts: Sequence[int]) -> Plan:
    devices = tuple(Device(host=host) for host in hosts)
    return Plan(Topology("hosts", devices), SHARDS, ("country",))


def shares_of(artifact: Artifact, plan: Plan, memory: TableMemory) -> dict[int, ModelShare]:
    hosts = {device.host for device in plan.topology.devices}
    return {host: ModelShare(artifact, plan, host, memory=memory) for host in hosts}


@pytest.mark.parametrize("memory", TableMemory)
@pytest.mark.parametrize("own", [None, 0, 1])
@pytest.mark.parametrize("hosts", [(0, 1, 2), (0, 1, 1), (0, 0, 1)], ids=str)
def test_a_front_scores_as_one_process(
    artifact: Artifact,
    threads: ThreadPoolExecutor,
    hosts: tuple[int, ...],
    own: int | None,
    memory: TableMemory,
) -> None:
    plan = plan_on(hosts)
    alone = Model(artifact, plan)
    answers = {
        host: partial(pooled_by, share.lookups)
        for host, share in shares_of(artifact, plan, memory).items()
        if host != own
    }
    asked = ThreadedHosts(answers, threads)
    front = Model(artifact, plan, memory=memory, front=Front(asked, own))
    samples = generate_samples(alone.spec, 33, seed=4)
    for name, scores in alone.run(samples).items():
        assert np.array_equal(front.run(samples)[name], scores)
    assert check_golden(front) == check_golden(alone)
    assert set(asked.events) == {"started", "finished"}
    here = [rank for rank, host in enumerate(hosts) if host == own]
    expected = [held if rank in here else 0 for rank, held in enumerate(alone.rank_bytes)]
    assert front.rank_bytes == expected
    assert front.map_pages() and front.huge_page_bytes() >= 0
    front.check_files()


def test_a_share_is_opened_from_a_folder(published_version: Path) -> None:
    opened = open_share(published_version, 0, topology="cpu:2")
    assert opened.host == 0 and opened.plan.topology.name == "cpu:2"
    with pytest.raises(PlanError, match="topology 'cpu:2': host 3 holds no rows, .* one of 0"):
        open_share(published_version, 3, topology="cpu:2")
    with pytest.raises(NotFoundError, match="no plan for topology 'cpu:9'"):
        open_share(published_version, 0, topology="cpu:9")


def test_files_of_other_hosts_are_not_needed(version_copy: Path) -> None:
    artifact = open_artifact(version_copy)
    devices = (Device(host=0), Device(host=1))
    # The files of int8 and bf16 rows.
    shards = tuple(
        Shard(t.name, int(t.row_format == "bf16"), 0, t.rows, 0, t.dim)
        for t in artifact.manifest.tables
    )
    plan = Plan(Topology("hosts", devices), shards)
    (version_copy / "tables" / "bf16-00000.safetensors").unlink()
    for memory in TableMemory:
        ModelShare(artifact, plan, 0, memory=memory)
        with pytest.raises(ArtifactError, match="bf16-00000.safetensors"):
            ModelShare(artifact, plan, 1, memory=memory)


def test_a_front_of_a_host_that_nobody_can_ask_is_refused(
    published_version: Path, artifact: Artifact, threads: ThreadPoolExecutor
) -> None:
    front = Front(ThreadedHosts({}, threads), 0)
    with pytest.raises(PlanError, match="rank 1 is on host 1, which is neither this one nor"):
        Model(artifact, plan_on((0, 1, 1)), front=front)
    # All ranks of a plan without hosts are on host 0.
    open_model(published_version, topology="cpu:2", front=front)
    gpus = plan_on((0, 1, 1))
    devices = tuple(replace(device, kind="cuda") for device in gpus.topology.devices)
    gpus = replace(gpus, topology=replace(gpus.topology, devices=devices))
    with pytest.raises(DeviceError, match="topology 'hosts': a front looks rows up on hosts alone"):
        Model(artifact, gpus, devices=DeviceChoice(), front=front)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = ModelSpec("large", tuple(TableSpec(name, 250_000, 60) for name in ("left", "right")))
    weights = {
        name: torch.randn(250_000, 60, generator=torch.Generator().manual_seed(seed))
        for seed, name in enumerate(("left", "right"))
    }
    return publish(spec, weights, Summed(), tmp_path_factory.mktemp("large")).path


class Summed(torch.nn.Module):
    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        return embeddings.mean(1)


@pytest.mark.parametrize("memory", TableMemory)
@pytest.mark.parametrize("kind", ["whole", "rows", "columns"])
def test_a_host_holds_its_share_and_no_more(large: Path, kind: str, memory: TableMemory) -> None:
    artifact = open_artifact(large)
    tables = ("left", "right")
    shards = {
        "whole": [Shard(tables[h], h, 0, 250_000, 0, 60) for h in (0, 1)],
        "rows": [
            Shard(t, h, h * 125_000, (h + 1) * 125_000, 0, 60) for t in tables for h in (0, 1)
        ],
        "columns": [Shard(t, h, 0, 250_000, h * 30, h * 30 + 30) for t in tables for h in (0, 1)],
    }[kind]
    plan = on_hosts(Plan(Topology("hosts", (Device(), Device())), tuple(shards)), (0, 1))
    for host in (0, 1):
        share = ModelShare(artifact, plan, host, memory=memory)
        share.rows.map_pages()
        copies = {
            rows.memory.data_ptr(): rows.memory.numel()
            for rows in share.rows.pieces.values()
            if rows.file is None
        }
        held = sum(copies.values()) + mapped_bytes(large / "tables")
        # At both ends of its two ranges, a page of 2 MiB may be mapped that it needs in part.
        assert share.table_bytes <= held <= 1.01 * share.table_bytes + 4 * 2**21
        del share


def mapped_bytes(folder: Path) -> int:
    """Bytes of the folder's files that are in this process's page table."""
    found, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_inside = str(folder) in line
        elif is_inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found
