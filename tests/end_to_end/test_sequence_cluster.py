"""Sequences on shard hosts, all of them processes: the bits of one process, and default rows."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.model import open_model
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.fronts import SECONDS, hosts_file
from tests.support.raw_cluster import replace_plan
from tests.support.servers import (
    MODEL,
    Arrays,
    RunningServer,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.shard_host_processes import ShardHostProcess, end_all, running_shard_host
from tests.support.waiting import until

HOSTS, LOST = 2, 1
QUICK = ("--poll-seconds", 0.1)
ITEM, KIND = (0.25,) * 8, (-0.5,) * 4
SPEC = ModelSpec(
    MODEL,
    (
        TableSpec("item", 60, 8, features=("candidate", "clicks"), default_row=ITEM),
        TableSpec("kind", 6, 4, default_row=KIND),
        TableSpec("shop", 9, 4),
    ),
    tower=TowerSpec(user_inputs=("seen",)),
    quantization=QuantizationSpec("fp32"),
    sequences={
        "seen": SequenceSpec(20, features=("clicks", "kind"), dense={"age": 1}),
        "shops": SequenceSpec(4, features=("shop",), keep="first", pad="left"),
    },
)
# By rows, by columns, and whole on the host that stays.
SHARDS = (
    Shard("item", 0, 0, 30, 0, 8),
    Shard("item", 1, 30, 60, 0, 8),
    Shard("kind", 0, 0, 6, 0, 2),
    Shard("kind", 1, 0, 6, 2, 4),
    Shard("shop", 0, 0, 9, 0, 4),
)


class Tower(nn.Module):
    """Small numbers, whose sums are exact in any order."""

    def forward(
        self,
        seen: Tensor,
        seen_lengths: Tensor,
        age: Tensor,
        shops: Tensor,
        shops_lengths: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        rows = (seen * age).sum((1, 2)) + shops.sum((1, 2))
        return rows + embeddings.sum(1) + (seen_lengths + shops_lengths).to(torch.float32)


def rows_of(table: TableSpec) -> Tensor:
    """Whole numbers and halves."""
    generator = torch.Generator().manual_seed(table.rows)
    return torch.randint(-8, 9, (table.rows, table.dim), generator=generator) / 2


ROWS = {table.name: rows_of(table) for table in SPEC.tables}


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences")
    path = publish(SPEC, ROWS, Tower(), folder / "repository", topologies=("cpu:2",)).path
    [name] = open_artifact(path).manifest.plans
    devices = tuple(Device(host=host) for host in range(HOSTS))
    replace_plan(path, Plan(Topology(name, devices), SHARDS))
    return path


@pytest.fixture(scope="module")
def hosts(
    version: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, ShardHostProcess]]:
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        running = {
            number: stack.enter_context(
                running_shard_host(
                    version.parents[1],
                    number,
                    logs / f"host{number}",
                    *QUICK,
                    exit_code=None if number == LOST else 0,
                )
            )
            for number in range(HOSTS)
        }
        stack.callback(end_all, running.values())
        yield running


@pytest.fixture(scope="module")
def front(
    version: Path, hosts: dict[int, ShardHostProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("front")
    named = ("--shard-hosts", hosts_file(folder, hosts, "timeout_ms = 2000"))
    options = ("--memory", "map", "--user-cache-mib", 16, *QUICK)
    with running_server(version.parents[1], folder / "log", *named, *options) as running:
        yield running


def inputs_of(batch: int, seed: int) -> Arrays:
    """Histories of 0 to 24 ids: some are longer than the sequence."""
    generator = np.random.default_rng(seed)
    arrays: Arrays = {"candidate": generator.integers(0, 60, (batch, 1))}
    lengths = generator.integers(0, 25, batch)
    for name, rows in (("clicks", 60), ("kind", 6)):
        arrays |= {
            name: generator.integers(0, rows, int(lengths.sum())),
            f"{name}.lengths": lengths,
        }
    arrays["age"] = generator.integers(1, 5, int(lengths.sum())).astype(np.float32) / 2
    arrays["age.lengths"] = lengths
    shops = generator.integers(0, 7, batch)
    arrays |= {"shop": generator.integers(0, 9, int(shops.sum())), "shop.lengths": shops}
    return arrays


def expected_of(arrays: Arrays, *, is_lost: bool) -> list[float]:
    """Scores of a loop, with default rows where a host is lost."""

    def row(table: str, number: int) -> Tensor:
        default = {"item": ITEM, "kind": KIND}.get(table)
        lost = is_lost and (table == "kind" or (table == "item" and number >= 30))
        return torch.tensor(default) if lost and default is not None else ROWS[table][number]

    ends, shop_ends = np.cumsum(arrays["clicks.lengths"]), np.cumsum(arrays["shop.lengths"])
    scores = []
    for sample, (candidate,) in enumerate(arrays["candidate"].tolist()):
        begin = int(ends[sample] - arrays["clicks.lengths"][sample])
        score = row("item", candidate).sum()
        kept = range(max(begin, int(ends[sample]) - 20), int(ends[sample]))
        for at in kept:
            rows = row("item", int(arrays["clicks"][at])), row("kind", int(arrays["kind"][at]))
            score += torch.cat(rows).sum() * float(arrays["age"][at])
        first = int(shop_ends[sample] - arrays["shop.lengths"][sample])
        shops = range(first, min(first + 4, int(shop_ends[sample])))
        score += sum(row("shop", int(arrays["shop"][at])).sum() for at in shops)
        scores.append(float(score) + len(kept) + len(shops))
    return scores


def has_the_bits_of_one_process(version: Path, front: RunningServer) -> None:
    """Sums on the hosts are those of one process, and of a loop."""
    whole = open_model(version)
    # The second time, users' states are there.
    for batch in (1, 1, 3, 40, 40):
        arrays = inputs_of(batch, batch)
        with front.stub() as stub:
            found = scores_of(stub.ModelInfer(infer_request(arrays), timeout=SECONDS))["score"]
        np.testing.assert_array_equal(found, whole.predict(arrays)["score"])
        np.testing.assert_array_equal(found, expected_of(arrays, is_lost=False))


def has_changed_rows_of_both_hosts(version: Path, front: RunningServer) -> None:
    """The cache of users has states of the version before, which must not be used."""
    arrays = inputs_of(40, 40)
    with front.stub() as stub:
        before = scores_of(stub.ModelInfer(infer_request(arrays), timeout=SECONDS))["score"]
        generator = torch.Generator().manual_seed(1)
        for name, ids in (("item", [3, 20, 31, 59]), ("kind", [1, 4])):
            rows = torch.randint(-8, 9, (len(ids), ROWS[name].shape[1]), generator=generator) / 2
            ROWS[name][ids] = rows
            changes = {name: ChangedRows(np.array(ids), rows)}
            published = publish_delta(MODEL, changes, version.parents[1])
        last = str(published.version)

        def answer() -> Any:
            return stub.ModelInfer(infer_request(arrays), timeout=SECONDS)

        until(lambda: answer().model_version == last, f"version {last} is served")
        expected = expected_of(arrays, is_lost=False)
        assert not np.array_equal(before, expected)
        # The second time, users' states are there.
        for _ in range(2):
            np.testing.assert_array_equal(scores_of(answer())["score"], expected)


def has_default_rows_in_their_places(front: RunningServer, lost: ShardHostProcess) -> None:
    """Of the rows of a host that is gone."""
    lost.process.kill()
    lost.process.wait()
    # The second time too: such states are not kept.
    for batch in (2, 30, 2, 30):
        arrays = inputs_of(batch, batch)
        with front.stub() as stub:
            answer = stub.ModelInfer(infer_request(arrays), timeout=SECONDS)
        np.testing.assert_array_equal(scores_of(answer)["score"], expected_of(arrays, is_lost=True))
        told = answer.parameters["sharded_infer_default_tables"].string_param
        assert sorted(told.split(",")) == ["item", "kind"]


def test_histories_are_scored_by_rows_of_hosts_changed_rows_and_rows_for_a_lost_host(
    version: Path, front: RunningServer, hosts: dict[int, ShardHostProcess]
) -> None:
    # In this order: changes and the loss stay.
    has_the_bits_of_one_process(version, front)
    has_changed_rows_of_both_hosts(version, front)
    has_default_rows_in_their_places(front, hosts[LOST])
