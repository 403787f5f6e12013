"""Random plans on 1, 2, 4 and 8 hosts: a front has the bits of the same plan in one process."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import pooled_lookup
from kernels.backends.native import NativeBackend
from kernels.row_format import RowFormat
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.lookups.placement import hold, place, share_of
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.lookups.share_lookups import ShareLookups
from sharded_infer.planning.plan import Plan, Shard, StoredTable, check_plan
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.publishing.table_layout import MAX_FILE_BYTES, lay_out
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.reference.row_encoding import encode
from tests.sharded_infer.lookups.test_batch_lookup import pooled_by, same_bits
from tests.sharded_infer.lookups.test_plan_lookups import check, stored_pieces
from tests.support.shard_hosts import ThreadedHosts

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# Sums and means of every row format; columns may be cut at multiples of 4.
SPEC = ModelSpec(
    "random",
    tuple(
        TableSpec(
            f"{row_format}-{pooling}",
            rows=20 + 7 * number,
            dim=4 * (1 + number % 4),
            pooling=pooling,
            format=row_format,
            out_of_range="ignore",
            padding_idx=3 if number % 2 else None,
            features=(f"{row_format}-{pooling}", f"also-{row_format}")[: 1 + (pooling == "mean")],
        )
        for number, row_format in enumerate(RowFormat)
        for pooling in ("sum", "mean")
    ),
)
TABLES = {t.name: StoredTable(t.name, t.rows, t.dim, SPEC.row_format(t)) for t in SPEC.tables}


KINDS = ("whole", "columns", "rows", "grid", "replicated")


def random_plan(
    generator: np.random.Generator,
    hosts: int,
    *,
    kinds: Sequence[str] = KINDS,
    tables: Mapping[str, StoredTable] = TABLES,
    name: str = "random",
    cut_rows: Callable[[StoredTable, np.random.Generator], list[int]] = lambda table, generator: (
        cuts(generator, table.rows, 1)
    ),
) -> Plan:
    """Tables whole, cut by columns, by rows, into a grid, or on every rank; two ranks a host.

    `cut_rows` returns the first rows of a table's parts, and its end.
    """
    of_ranks = np.concatenate([np.arange(hosts), generator.integers(0, hosts, hosts)])
    generator.shuffle(of_ranks)
    shards: list[Shard] = []
    replicated: list[str] = []
    for table in tables.values():
        kind = generator.choice(kinds)
        if kind == "replicated":
            replicated.append(table.name)
            continue
        rows, columns = [0, table.rows], [0, table.dim]
        if kind in ("rows", "grid"):
            rows = cut_rows(table, generator)
        if kind in ("columns", "grid"):
            columns = cuts(generator, table.dim, 4)
        for first, last in itertools.pairwise(rows):
            for left, right in itertools.pairwise(columns):
                rank = int(generator.integers(len(of_ranks)))
                shards.append(Shard(table.name, rank, first, last, left, right))
    generator.shuffle(shards)
    devices = tuple(Device(host=int(host)) for host in of_ranks)
    plan = Plan(Topology(name, devices), tuple(shards), tuple(replicated))
    check_plan(plan, tables)
    return plan


def cuts(generator: np.random.Generator, end: int, multiple: int) -> list[int]:
    inner = generator.integers(1, max(2, end // multiple), 3) * multiple
    return sorted({0, end, *(int(cut) for cut in inner if cut < end)})


def random_group(
    generator: np.random.Generator, features: Sequence[int], bags: int, *, weighted: bool
) -> JaggedBatch:
    """Bags of 0 to 5 ids, a few of them outside their tables."""
    lengths = generator.integers(0, 6, (len(features), bags)) * (
        generator.random((len(features), bags)) < 0.8
    )
    rows = np.repeat([SPEC.features[f].table.rows for f in features], lengths.sum(axis=1))
    values = (generator.random(len(rows)) * rows * 1.05).astype(np.int64)
    weights = generator.standard_normal(len(values), dtype=np.float32) if weighted else None
    return JaggedBatch(tuple(features), values, lengths, weights)


def random_input(generator: np.random.Generator) -> ModelInput:
    """Samples with bags of their own, or some that all or a few of them share."""
    batch, weighted = int(generator.integers(1, 9)), bool(generator.integers(2))
    features = np.arange(len(SPEC.features))
    shared = features[generator.random(len(features)) < generator.choice([0.4, 1.0])].tolist()
    if batch == 1 or not shared or not generator.integers(3):
        group = random_group(generator, features.tolist(), batch, weighted=weighted)
        return ModelInput(batch, (group,), ())
    requests = int(generator.integers(1, batch))
    repeats = np.ones(requests, np.int64)
    repeats[-1] += batch - requests
    own = [feature for feature in features.tolist() if feature not in shared]
    groups = tuple(
        random_group(generator, chosen, bags, weighted=weighted)
        for chosen, bags in ((own, batch), (shared, requests))
        if chosen
    )
    return ModelInput(batch, groups, (), repeats=None if requests == 1 else repeats)


def answers_of(lookups: PlanLookups, batch: ModelInput) -> list[Tensor]:
    rows = batch.batch_size + 3
    if len(batch.groups) == 1:
        return [lookups.look_up(batch, rows=rows).pooled]
    apart, shared = lookups.look_up_apart(batch, rows=rows, request_rows=rows)
    return [lookups.look_up(batch, rows=rows).pooled, apart.pooled, shared]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("replicas", [False, True], ids=["each once", "replicas"])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_hosts_of_a_random_plan_give_what_the_tables_hold_and_the_bits_of_one_process(
    tmp_path: Path, count: int, replicas: bool, seed: int
) -> None:
    generator = np.random.default_rng([count, replicas, seed])
    torch.manual_seed(seed)
    stored = {t.name: encode(t.row_format, torch.randn(t.rows, t.dim)) for t in TABLES.values()}
    kinds = KINDS if replicas else KINDS[:-1]
    plan = random_plan(generator, count, kinds=kinds)
    # A replica's parts of several files are added in an order that may differ from rank to rank.
    file_bytes = MAX_FILE_BYTES if replicas else int(generator.choice([MAX_FILE_BYTES, 900, 200]))
    placed = place(plan, TABLES, lay_out(list(TABLES.values()), file_bytes))
    pieces = stored_pieces(tmp_path, stored, file_bytes, TABLES)
    alone = PlanLookups(SPEC, placed, hold(placed, pieces))
    shares = {
        host: ShareLookups(SPEC, placed, hold(share_of(placed, host), pieces), host)
        for host in range(count)
    }
    own = [None, *range(count)][int(generator.integers(count + 1))]
    with ThreadPoolExecutor(count) as threads:
        answers = {h: partial(pooled_by, shares[h]) for h in shares if h != own}
        hosts = ThreadedHosts(answers, threads)
        held = hold(share_of(placed, own), pieces)
        front = PlanLookups(SPEC, placed, held, hosts=hosts)
        for _ in range(6):
            batch = random_input(generator)
            for lookups in (front, alone):
                check(lookups, SPEC, stored, plan, batch)
            assert all(map(same_bits, answers_of(front, batch), answers_of(alone, batch)))
    assert hosts.events.count("started") == hosts.events.count("finished")
    assert bool(hosts.events) is (set(range(count)) != {own})


class ForcedBackend(NativeBackend):
    name = "forced"


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_another_backend_runs_have_the_bits_of_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    stored = {t.name: encode(t.row_format, torch.randn(t.rows, t.dim)) for t in TABLES.values()}
    plan = random_plan(generator, 2)
    placed = place(plan, TABLES, lay_out(list(TABLES.values())))
    pieces = stored_pieces(tmp_path, stored, tables=TABLES)
    share = ShareLookups(SPEC, placed, hold(share_of(placed, 1), pieces), 1)
    one_call = PlanLookups(SPEC, placed, hold(placed, pieces))
    monkeypatch.setattr(pooled_lookup, "BACKENDS", (ForcedBackend,))
    forced = PlanLookups(SPEC, placed, hold(placed, pieces), backend="forced")
    with ThreadPoolExecutor(1) as threads:
        hosts = ThreadedHosts({1: partial(pooled_by, share)}, threads)
        own = hold(share_of(placed, 0), pieces)
        front = PlanLookups(SPEC, placed, own, hosts=hosts, backend="forced")
        assert set(front.backends.values()) == {"forced"}
        for _ in range(6):
            batch = random_input(generator)
            for lookups in (forced, front):
                check(lookups, SPEC, stored, plan, batch)
                assert all(map(same_bits, answers_of(lookups, batch), answers_of(one_call, batch)))
