"""Each of eight shard hosts holds its share and at most a tenth more, in memory and on the disk."""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.protocol.lookups.version_key import version_key
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from sharded_infer import open_model
from sharded_infer.artifacts.artifact import Artifact, open_artifact
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.planning.plan import Plan, Shard, dump_plan
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.version_cache import VersionCache
from sharded_infer.repositories.version_copy import copy_version
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.support.shard_host_processes import ShardHostProcess, running_shard_host

# A share of 64 MiB: blocks of 1 MiB and pages of 2 MiB are within a tenth of it.
ROWS, DIM = 131_072, 128
SHARE = ROWS * DIM * 4
SMALL = 2_048
SPEC = ModelSpec(
    "wide",
    (
        TableSpec("by_rows", rows=4 * ROWS, dim=DIM, format=RowFormat.FP32),
        TableSpec("by_columns", rows=2 * ROWS, dim=DIM, format=RowFormat.FP32),
        TableSpec("whole", rows=ROWS, dim=DIM, format=RowFormat.FP32),
        TableSpec("small", rows=SMALL, dim=DIM, format=RowFormat.FP32),
    ),
)
HOSTS, SPLIT_BY_COLUMNS = 8, (4, 5)
# Of a bucket, which is slow, one host of each kind.
STARTED = {"folder": tuple(range(HOSTS)), "bucket": (0, *SPLIT_BY_COLUMNS, 6, 7)}
# The address of the others, whose rows are not asked for.
NOBODY = "127.0.0.1:1"
# It holds the replicated table alone: what its process takes, every other takes too.
BARE = HOSTS - 1
PLAN = Plan(
    Topology("hosts", tuple(Device(host=host) for host in range(HOSTS))),
    (
        *(Shard("by_rows", host, host * ROWS, (host + 1) * ROWS, 0, DIM) for host in range(4)),
        Shard("by_columns", 4, 0, 2 * ROWS, 0, DIM // 2),
        Shard("by_columns", 5, 0, 2 * ROWS, DIM // 2, DIM),
        Shard("whole", 6, 0, ROWS, 0, DIM),
    ),
    ("small",),
)
BATCH = 1_024
MIB = 2**20
# What fetching and answering take beside the rows, whatever the share: parts on their way, answers.
BUFFERS = 32 * MIB


class Scorer(nn.Module):
    """The smallest tower: the sum of its embeddings."""

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.sum(1)


@dataclass(frozen=True)
class Memory:
    """Bytes of a process: of mapped table files, its own, and the most it ever had."""

    mapped: int
    own: int
    peak: int


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The model with a plan for eight hosts, made by hand so that all kinds of shards are in it."""
    made, repository = (Repository(tmp_path_factory.mktemp(name)) for name in ("made", "wide"))
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: torch.rand(t.rows, t.dim, generator=generator) for t in SPEC.tables}
    artifact = open_artifact(publish(SPEC, weights, Scorer(), made).path)
    plan = dump_plan(PLAN)
    record = FileRecord(len(plan), hashlib.sha256(plan).hexdigest())
    with repository.staging("wide") as staged:
        shutil.copytree(artifact.path, staged, dirs_exist_ok=True, copy_function=os.link)
        (staged / "manifest.json").unlink()
        (staged / "plans" / "hosts.json").write_bytes(plan)
        manifest = artifact.manifest
        files = manifest.files | {"plans/hosts.json": record}
        plans = {"hosts": "plans/hosts.json", **manifest.plans}
        repository.commit(staged, replace(manifest, plans=plans, files=files))
    return repository


@pytest.fixture(params=["folder", "bucket"])
def location(request: pytest.FixtureRequest, published: Repository, tmp_path: Path) -> str | Path:
    if request.param == "folder":
        return published.path
    url = request.getfixturevalue("s3_url")
    copy_version(published, "wide", 1, Repository(url, VersionCache(tmp_path / "publisher")))
    return str(url)


def test_each_host_holds_its_share_and_a_tenth_more(
    published: Repository,
    location: str | Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    artifact = published.open("wide", 1)
    with ExitStack() as stack:
        hosts: dict[int, ShardHostProcess] = {}
        for number in STARTED["folder" if isinstance(location, Path) else "bucket"]:
            monkeypatch.setenv("SHARDED_INFER_CACHE", str(tmp_path / f"cache{number}"))
            process = running_shard_host(location, number, tmp_path / f"{number}.log")
            hosts[number] = stack.enter_context(process)
        read_every_row(artifact, hosts)
        memory = {number: memory_of(host.process.pid) for number, host in hosts.items()}
    disk = {number: disk_bytes(tmp_path / f"cache{number}") for number in hosts}
    bare, small = memory[BARE], SMALL * DIM * 4
    assert bare.mapped <= small + 4 * MIB
    for number, held in memory.items():
        share = small + (SHARE if number != BARE else 0)
        assert hosts[number].ready["versions"][0]["table_bytes"] == share
        own, peak = held.own - bare.own, held.peak - bare.peak
        figures = (
            f"host {number}: share {share / MIB:.1f} MiB, mapped {held.mapped / MIB:.1f}, "
            f"own {own / MIB:.1f}, peak {peak / MIB:.1f}, cache {disk[number] / MIB:.1f}"
        )
        record_property(f"host {number}", figures)
        sys.stdout.write(f"{figures}\n")
        if number == BARE:
            continue
        most = 1.1 * share
        if number in SPLIT_BY_COLUMNS:
            assert held.mapped <= small + 4 * MIB, figures
        else:
            assert SHARE <= held.mapped <= most, figures
        assert held.mapped + own <= most + BUFFERS and peak <= most + 2 * BUFFERS, figures
        if isinstance(location, Path):
            assert disk[number] == 0
        elif number not in SPLIT_BY_COLUMNS:
            assert share <= disk[number] <= most, figures


def read_every_row(artifact: Artifact, hosts: Mapping[int, ShardHostProcess]) -> None:
    """Has each host look every one of its rows up, as a front does."""
    listed = dict.fromkeys(range(HOSTS), (NOBODY,))
    listed |= {number: (host.address,) for number, host in hosts.items()}
    clients = HostClients(HostSettings(listed, 60.0, None, None), answer_bytes=16 * MIB)
    remote = RemoteHosts(version_key(artifact.manifest), clients)
    front = open_model(artifact.path, topology="hosts", front=Front(remote, None), verify=False)
    alone = open_model(artifact.path, topology="hosts", verify=False)
    rows = {table.name: table.rows for table in SPEC.tables}
    if len(hosts) < HOSTS:
        rows["by_rows"] = ROWS * sum(number < SPLIT_BY_COLUMNS[0] for number in hosts)
        # Any host is asked for replicated rows.
        del rows["small"]
    for first in range(0, max(rows.values()), BATCH):
        ids = np.arange(first, first + BATCH)
        inputs = {name: ids % count for name, count in rows.items()}
        scores = front.predict(inputs)
        if not first:
            np.testing.assert_array_equal(scores["score"], alone.predict(inputs)["score"])


def memory_of(process: int) -> Memory:
    """What the kernel says of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    found = {name: 1024 * int(kb) for name, kb in re.findall(r"(\w+):\s+(\d+) kB", status)}
    mapped, inside = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = "/tables/" in line
        elif inside and line.startswith("Rss:"):
            mapped += 1024 * int(line.split()[1])
    return Memory(mapped, found["RssAnon"], found["VmHWM"])


def disk_bytes(path: Path) -> int:
    """What a folder's files take on the disk; 0 if there is none."""
    found = {f.stat().st_ino: 512 * f.stat().st_blocks for f in path.rglob("*") if f.is_file()}
    return sum(found.values())
