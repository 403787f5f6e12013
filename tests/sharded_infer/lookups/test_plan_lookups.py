"""Every way to shard gives the numbers of the unsharded tables.

Uninitialized memory is NaN, so that a column that no shard writes shows.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from sharded_infer.artifacts.manifest import PieceRecord
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.artifacts.table_file import map_table_file
from sharded_infer.artifacts.table_header import TableEntry
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.lookups.lookup_work import LookedUp
from sharded_infer.lookups.placement import PlacedPiece, hold, place
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.planning.plan import Plan, Shard, StoredTable, check_plan
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.publishing.table_layout import MAX_FILE_BYTES, lay_out
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.reference.row_encoding import encode
from tests.sharded_infer.inputs.bags import Bag, bags_in, bags_of, repeats_of
from tests.support.table_files import write_table_file

BACKENDS = {"int8": "native", "bf16": "native"}

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BF16 = RowFormat.BF16
SPEC = ModelSpec(
    "lookup",
    (
        TableSpec("ads", rows=30, dim=8, features=("shown", "clicked")),
        TableSpec("country", rows=11, dim=5, pooling="mean", out_of_range="ignore"),
        TableSpec("user", rows=17, dim=6, pooling="mean", format=BF16, features=("u", "friend")),
        TableSpec("page", rows=25, dim=4, format=BF16, out_of_range="modulo"),
    ),
)
TABLES = {t.name: StoredTable(t.name, t.rows, t.dim, SPEC.row_format(t)) for t in SPEC.tables}
FEATURES = tuple(range(len(SPEC.features)))
BATCH = 6

# (rank, first row, last row, first column, last column) of the tables that are not whole.
Rectangles = Sequence[tuple[int, int, int, int, int]]
WHOLE: dict[str, Rectangles] = {}
RANKS: dict[str, Rectangles] = {
    "ads": [(2, 0, 30, 0, 8)],
    "country": [(1, 0, 11, 0, 5)],
    "user": [(1, 0, 17, 0, 6)],
}
COLUMNS: dict[str, Rectangles] = {
    "ads": [(0, 0, 30, 5, 8), (1, 0, 30, 0, 5)],
    "country": [(1, 0, 11, 0, 1), (0, 0, 11, 1, 4), (1, 0, 11, 4, 5)],
    "user": [(0, 0, 17, 0, 3), (0, 0, 17, 3, 6)],
    "page": [(2, 0, 25, 0, 4)],
}
ROWS: dict[str, Rectangles] = {
    "ads": [(0, 0, 10, 0, 8), (1, 10, 11, 0, 8), (2, 11, 30, 0, 8)],
    "country": [(0, 0, 6, 0, 5), (0, 6, 11, 0, 5)],
    "user": [(2, 0, 16, 0, 6), (1, 16, 17, 0, 6)],
    "page": [(1, 0, 12, 0, 4), (0, 12, 25, 0, 4)],
}
MIXED: dict[str, Rectangles] = {
    # A grid; columns whole beside columns cut by rows; a brick pattern.
    "ads": [(0, 0, 15, 0, 4), (1, 0, 15, 4, 8), (1, 15, 30, 0, 4), (2, 15, 30, 4, 8)],
    "country": [(0, 0, 11, 0, 2), (1, 0, 7, 2, 5), (2, 7, 11, 2, 5)],
    "user": [(0, 0, 9, 0, 2), (1, 0, 9, 2, 6), (0, 9, 17, 0, 5), (1, 9, 17, 5, 6)],
    "page": [(2, 0, 25, 0, 4)],
}
PLANS = {"whole": WHOLE, "ranks": RANKS, "columns": COLUMNS, "rows": ROWS, "mixed": MIXED}

Build = Callable[..., PlanLookups]


@pytest.fixture(scope="module")
def stored() -> dict[str, torch.Tensor]:
    return encoded_tables()


def encoded_tables() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        t.name: encode(t.row_format, torch.randn(t.rows, t.dim, generator=generator))
        for t in TABLES.values()
    }


@pytest.fixture
def build(stored: dict[str, torch.Tensor], tmp_path: Path) -> Build:
    return partial(build_lookup, tmp_path, stored)


def build_lookup(
    folder: Path,
    stored: Mapping[str, torch.Tensor],
    rectangles: Mapping[str, Rectangles],
    *,
    file_bytes: int = MAX_FILE_BYTES,
    replicated: tuple[str, ...] = (),
    spec: ModelSpec = SPEC,
) -> PlanLookups:
    pieces = stored_pieces(folder, stored, file_bytes)
    placed = placed_pieces(plan_of(rectangles, replicated=replicated), file_bytes)
    return PlanLookups(spec, placed, hold(placed, pieces))


def placed_pieces(plan: Plan, file_bytes: int = MAX_FILE_BYTES) -> list[PlacedPiece]:
    return place(plan, TABLES, lay_out(list(TABLES.values()), file_bytes))


def stored_pieces(
    folder: Path,
    stored: Mapping[str, torch.Tensor],
    file_bytes: int = MAX_FILE_BYTES,
    tables: Mapping[str, StoredTable] = TABLES,
) -> dict[str, list[TablePiece]]:
    members = defaultdict(list)
    for name, records in lay_out(list(tables.values()), file_bytes).items():
        for record in records:
            members[record.file].append((name, record))
    pieces = defaultdict(list)
    home = folder / str(len(list(folder.iterdir())))
    (home / "tables").mkdir(parents=True)
    for file, records in members.items():
        parts = [stored[name][r.first_row : r.first_row + r.rows] for name, r in records]
        entries = [
            TableEntry(r.entry, *part.shape) for (_, r), part in zip(records, parts, strict=True)
        ]
        write_table_file(home / file, entries, parts)
        mapped = map_table_file(home / file)
        for name, record in records:
            found = mapped[record.entry]
            begin = record.first_row
            piece = TablePiece(found.memory, found.byte_offset, begin, record.rows, found.file)
            pieces[name].append(piece)
    return pieces


def plan_of(
    rectangles: Mapping[str, Rectangles],
    topology: str = "cpu:3",
    *,
    replicated: tuple[str, ...] = (),
) -> Plan:
    """A checked plan of these shards; tables without any are whole on rank 0."""
    shards = [
        Shard(name, *rectangle)
        for name, table in TABLES.items()
        if name not in replicated
        for rectangle in rectangles.get(name, [(0, 0, table.rows, 0, table.dim)])
    ]
    plan = Plan(parse_topology(topology), tuple(shards), replicated)
    check_plan(plan, TABLES)
    return plan


def batch_of(
    size: int,
    *,
    seed: int = 0,
    weighted: bool = False,
    features: Sequence[int] = FEATURES,
    outside: bool = False,
) -> JaggedBatch:
    """Random bags of 0 to 4 ids; with `outside`, ids beyond the tables that allow it."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 5, (len(features), size))
    parts = []
    for feature, count in zip(features, lengths.sum(axis=1), strict=True):
        table = SPEC.features[feature].table
        wide = outside and table.out_of_range != "error"
        parts.append(
            generator.integers(-3 * table.rows if wide else 0, (1 + 3 * wide) * table.rows, count)
        )
    values = np.concatenate(parts)
    weights = generator.standard_normal(len(values), dtype=np.float32) if weighted else None
    return JaggedBatch(tuple(features), values, lengths, weights)


def rows_of(table: TableSpec, bag: Bag) -> Iterator[tuple[int, float]]:
    """Rows of a bag's ids, with their weights; some ids are left out."""
    for row, weight in zip(*bag, strict=True):
        if 0 <= row < table.rows or table.out_of_range == "modulo":
            row %= table.rows
            if row != table.padding_idx:
                yield row, weight


def expected(
    spec: ModelSpec, stored: Mapping[str, torch.Tensor], asked: ModelInput
) -> NDArray[np.float64]:
    """Pooled bag by bag, in double precision."""
    columns = []
    for feature, bags in zip(spec.features, bags_of(asked), strict=True):
        table = feature.table
        numbers = decode(spec.row_format(table), stored[table.name], table.dim).double().numpy()
        pooled = np.zeros((len(bags), table.dim))
        for sample, bag in enumerate(bags):
            rows = list(rows_of(table, bag))
            for row, weight in rows:
                pooled[sample] += weight * numbers[row]
            if table.pooling == "mean":
                pooled[sample] /= max(1, len(rows))
        columns.append(pooled)
    return np.concatenate(columns, axis=1)


def spread(asked: ModelInput) -> ModelInput:
    bags = bags_of(asked)
    values = [raw for of_feature in bags for ids, _ in of_feature for raw in ids]
    weights = None
    if any(group.weights is not None for group in asked.groups):
        scales = [scale for of_feature in bags for _, weights in of_feature for scale in weights]
        weights = np.array(scales, np.float32)
    lengths = np.array([[len(ids) for ids, _ in of_feature] for of_feature in bags])
    group = JaggedBatch(tuple(range(len(bags))), np.array(values, np.int64), lengths, weights)
    return ModelInput(asked.batch_size, (group,), ())


def check_work(spec: ModelSpec, plan: Plan, asked: ModelInput, result: LookedUp) -> None:
    """Rows and bytes by rank, rows saved and ids outside, counted id by id."""
    by_rank: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    saved = outside = 0
    for group in asked.groups:
        repeats = repeats_of(asked, group).tolist()
        for feature, bags in zip(group.features, bags_in(group), strict=True):
            table = spec.features[feature].table
            table_format = spec.row_format(table)
            shards = [shard for shard in plan.shards if shard.table == table.name]
            # Replicas are read on any rank.
            shards = shards or [Shard(table.name, -1, 0, table.rows, 0, table.dim)]
            for bag, count in zip(bags, repeats, strict=True):
                outside += sum(not 0 <= raw < table.rows for raw in bag[0])
                for row, _ in rows_of(table, bag):
                    for shard in shards:
                        if shard.first_row <= row < shard.last_row:
                            by_rank[shard.rank][0] += 1
                            by_rank[shard.rank][1] += table_format.row_bytes(shard.columns)
                            saved += count - 1
    steps: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for rank, rows, row_bytes, seconds in result.work.steps:
        assert 0.0 < seconds < 10.0
        steps[rank][0] += rows
        steps[rank][1] += row_bytes
    if plan.replicated:
        assert np.sum([*steps.values()], 0).tolist() == np.sum([*by_rank.values()], 0).tolist()
    else:
        assert {rank: counts for rank, counts in steps.items() if counts[0]} == by_rank
    assert (result.work.rows_saved, result.ids_outside) == (saved, outside)


def check(
    lookups: PlanLookups,
    spec: ModelSpec,
    stored: Mapping[str, torch.Tensor],
    plan: Plan,
    asked: ModelInput,
) -> None:
    """Embeddings are those of single ids, with the same bits however samples share bags."""
    size = asked.batch_size
    whole = lookups.look_up(asked, rows=size + 2)
    assert whole.pooled.dtype == torch.float32 and whole.pooled.is_contiguous()
    assert torch.equal(whole.pooled[size:], torch.zeros(2, spec.embedding_width))
    pooled = whole.pooled[:size]
    # At most 5 ids of size 4: fp32 rounds each of a few sums by 2**-24 of them.
    np.testing.assert_allclose(pooled.numpy(), expected(spec, stored, asked), rtol=1e-5, atol=1e-5)
    assert torch.equal(pooled, look_up(lookups, spread(asked)).pooled)
    check_work(spec, plan, asked, whole)
    if len(asked.groups) == 1 or asked.groups[1].batch_size == size:
        return
    own, shared = asked.groups
    apart, by_request = lookups.look_up_apart(asked, rows=size + 2, request_rows=size)
    starts = np.cumsum([0, *(feature.table.dim for feature in spec.features)])
    for group, part in ((own, apart.pooled), (shared, by_request)):
        columns = np.concatenate([np.arange(starts[f], starts[f + 1]) for f in group.features])
        rows = np.arange(group.batch_size).repeat(repeats_of(asked, group))
        assert torch.equal(part[rows], pooled[:, columns])
        assert not part[group.batch_size :].any()
    assert apart.ids_outside == whole.ids_outside
    check_work(spec, plan, asked, apart)


def pooled_by(lookup: PlanLookups, *groups: JaggedBatch) -> torch.Tensor:
    return look_up(lookup, ModelInput(max(g.batch_size for g in groups), groups, ())).pooled


def look_up(lookup: PlanLookups, model_input: ModelInput) -> LookedUp:
    return lookup.look_up(model_input, rows=model_input.batch_size)


def inputs() -> Sequence[ModelInput]:
    """A bag a sample; some that all samples share; some that requests share; weights; no ids."""
    own, shared = FEATURES[:3], FEATURES[3:]
    plain = ModelInput(6, (batch_of(6, weighted=True, outside=True),), ())
    one = ModelInput(6, (batch_of(6, features=own), batch_of(1, features=shared)), ())
    some = (batch_of(6, features=own, weighted=True), batch_of(3, features=shared))
    nothing = JaggedBatch(FEATURES, np.empty(0, np.int64), np.zeros((len(FEATURES), 2), np.int64))
    several = ModelInput(6, some, (), repeats=np.array([1, 3, 2]))
    return plain, one, several, ModelInput(2, (nothing,), ())


def merged_inputs() -> Iterator[ModelInput]:
    """Requests of any sizes, whose samples share any features or none."""
    for shared in ((), (0,), (2, 3), (1, 3, 5), (0, 1, 2, 4, 5), FEATURES):
        own = tuple(feature for feature in FEATURES if feature not in shared)
        for repeats in ((1, 4, 1), (2, 2), (1, 1, 1), (5,), (3, 1, 2, 2)):
            weighted, outside = len(repeats) % 2 == 1, len(shared) % 2 == 0
            groups = tuple(
                batch_of(bags, features=of, seed=len(of), weighted=weighted, outside=outside)
                for of, bags in ((own, sum(repeats)), (shared, len(repeats)))
                if of
            )
            yield ModelInput(sum(repeats), groups, (), repeats=np.array(repeats))


@pytest.mark.parametrize("file_bytes", [MAX_FILE_BYTES, 150, 23], ids=["one", "some", "many"])
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_gives_what_the_tables_hold_however_samples_share_bags(
    build: Build, stored: dict[str, torch.Tensor], plan: str, file_bytes: int
) -> None:
    lookups = build(PLANS[plan], file_bytes=file_bytes)
    for asked in (*inputs(), *merged_inputs()):
        check(lookups, SPEC, stored, plan_of(PLANS[plan]), asked)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("plan", ["ranks", "columns"])
def test_rows_and_columns_have_unsharded_bits(build: Build, plan: str, weighted: bool) -> None:
    group = batch_of(BATCH, weighted=weighted, outside=True)
    lookup = build(PLANS[plan])
    assert torch.equal(pooled_by(lookup, group), pooled_by(build(WHOLE), group))
    assert lookup.backends == BACKENDS


def test_all_patterns_of_sharing_are_served(build: Build, stored: dict[str, torch.Tensor]) -> None:
    lookups = build(MIXED)
    for pattern in range(1, 2 ** len(FEATURES) - 1):
        shared = [f for f in FEATURES if pattern >> f & 1]
        own = [f for f in FEATURES if f not in shared]
        groups = batch_of(3, features=own), batch_of(1, features=shared)
        check(lookups, SPEC, stored, plan_of(MIXED), ModelInput(3, groups, ()))


def test_replicated_tables_take_turns_and_give_the_unsharded_bits(build: Build) -> None:
    batch = ModelInput(BATCH, (batch_of(BATCH),), (), ids_checked=True)
    whole = look_up(build(WHOLE), batch).pooled
    lookup = build(WHOLE, replicated=tuple(TABLES))
    turns = []
    for _ in range(3):
        found = look_up(lookup, batch)
        assert torch.equal(found.pooled, whole)
        rows = [0, 0, 0]
        for rank, count, *_ in found.work.steps:
            rows[rank] += count
        assert sum(rows) == batch.groups[0].values.size
        turns.append(tuple(rows))
    assert len(set(turns)) == 3, "each turn by other ranks"


def test_sums_have_the_same_bits_wherever_rows_lie(stored: dict[str, torch.Tensor]) -> None:
    group = batch_of(60, seed=3, weighted=True)
    records = {
        name: [
            PieceRecord(f"{name}-{number}", name, int(part[0]), len(part))
            for number, part in enumerate(torch.arange(len(rows)).tensor_split(3))
        ]
        for name, rows in stored.items()
    }
    placed = place(plan_of(WHOLE), TABLES, records)
    ascending, descending = (
        pooled_by(PlanLookups(SPEC, placed, hold(placed, pieces)), group)
        for pieces in (pieces_at(stored, order) for order in ((0, 1, 2), (2, 1, 0)))
    )
    assert torch.equal(ascending, descending)


def pieces_at(
    stored: Mapping[str, torch.Tensor], order: Sequence[int]
) -> dict[str, list[TablePiece]]:
    """Each table in three memories, whose addresses ascend in the given order."""
    pieces = {}
    for name, rows in stored.items():
        parts = rows.tensor_split(3)
        joined = torch.cat([parts[number] for number in order])
        memories = dict(zip(order, joined.split([len(parts[n]) for n in order]), strict=True))
        firsts = (0, len(parts[0]), len(parts[0]) + len(parts[1]))
        pieces[name] = [
            TablePiece(memories[number].reshape(-1), 0, firsts[number], len(parts[number]))
            for number in range(3)
        ]
    return pieces
