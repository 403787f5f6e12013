"""Every way to shard gives the numbers of the unsharded tables.

Uninitialized memory is NaN, so that a column that no shard writes shows.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant.encoding.rowwise import encode
from sharded_infer.artifacts.manifest import PieceRecord
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.artifacts.table_file import map_table_file
from sharded_infer.artifacts.table_header import TableEntry
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.lookups.lookups import LookedUp, Lookups
from sharded_infer.lookups.placement import PlacedPiece, hold, place
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.planning.plan import Plan, Shard, StoredTable, check_plan
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.publishing.table_layout import MAX_FILE_BYTES, lay_out
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
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
) -> PlanLookups:
    pieces = stored_pieces(folder, stored, file_bytes)
    placed = placed_pieces(plan_of(rectangles, replicated=replicated), file_bytes)
    return PlanLookups(SPEC, placed, hold(placed, pieces))


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


def expected(stored: Mapping[str, torch.Tensor], group: JaggedBatch) -> NDArray[np.float64]:
    """Pools one group bag by bag, in double precision."""
    out = []
    position = 0
    for index, lengths in zip(group.features, group.lengths, strict=True):
        table = SPEC.features[index].table
        numbers = decode(SPEC.row_format(table), stored[table.name], table.dim).double().numpy()
        pooled = np.zeros((len(lengths), table.dim))
        for sample, length in enumerate(lengths):
            kept = 0
            for i in range(position, position + length):
                row = int(group.values[i])
                if not 0 <= row < table.rows:
                    if table.out_of_range == "ignore":
                        continue
                    row %= table.rows
                weight = 1.0 if group.weights is None else float(group.weights[i])
                pooled[sample] += weight * numbers[row]
                kept += 1
            if table.pooling == "mean":
                pooled[sample] /= max(1, kept)
            position += length
        out.append(pooled)
    return np.concatenate(out, axis=1)


def pooled_by(lookup: Lookups, *groups: JaggedBatch) -> torch.Tensor:
    return look_up(lookup, ModelInput(max(g.batch_size for g in groups), groups, ())).pooled


def look_up(lookup: Lookups, model_input: ModelInput) -> LookedUp:
    return lookup.look_up(model_input, rows=model_input.batch_size)


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("plan", PLANS)
def test_what_samples_share_can_be_looked_up_apart_with_the_same_bits(
    build: Build, plan: str, requests: int
) -> None:
    lookup = build(PLANS[plan])
    every = batch_of(BATCH, weighted=True, outside=False)
    shared, own = (1, 2, 5), (0, 3, 4)
    of_requests = batch_of(requests, weighted=True, outside=False).select(shared)
    groups = (every.select(own), of_requests)
    repeats = None if requests == 1 else np.array([1, BATCH - 1])
    batch = ModelInput(BATCH, groups, (), repeats=repeats)
    whole, apart = look_up(lookup, batch), lookup.look_up_apart(batch, rows=8, request_rows=4)
    starts = np.cumsum([0, *(feature.table.dim for feature in SPEC.features)])
    for features, found, rows in (
        (own, apart.own, np.arange(BATCH)),
        (shared, apart.shared, np.array([0] + [requests - 1] * (BATCH - 1))),
    ):
        columns = np.concatenate([np.arange(starts[f], starts[f + 1]) for f in features])
        assert torch.equal(found[rows], whole.pooled[:, columns])
        assert not found[max(rows) + 1 :].any()
    assert apart.ids_outside == whole.ids_outside
    assert apart.work.rows_saved == whole.work.rows_saved


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("file_bytes", [MAX_FILE_BYTES, 150, 23], ids=["one", "some", "many"])
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_pools_what_the_tables_hold(
    build: Build,
    stored: dict[str, torch.Tensor],
    plan: str,
    file_bytes: int,
    outside: bool,
    weighted: bool,
) -> None:
    lookup = build(PLANS[plan], file_bytes=file_bytes)
    group = batch_of(BATCH, weighted=weighted, outside=outside)
    padded = lookup.look_up(ModelInput(BATCH, (group,), ()), rows=BATCH + 2).pooled
    assert padded.dtype == torch.float32 and padded.is_contiguous()
    assert torch.equal(padded[BATCH:], torch.zeros(2, SPEC.embedding_width))
    # At most 4 ids of size 4: fp32 rounds each of a few sums by 2**-24 of them.
    pooled = padded[:BATCH].numpy()
    np.testing.assert_allclose(pooled, expected(stored, group), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("plan", ["ranks", "columns"])
def test_whole_rows_and_columns_give_the_unsharded_bits(
    build: Build, plan: str, weighted: bool
) -> None:
    group = batch_of(BATCH, weighted=weighted, outside=True)
    lookup = build(PLANS[plan])
    assert torch.equal(pooled_by(lookup, group), pooled_by(build(WHOLE), group))
    assert lookup.backends == BACKENDS


def test_ids_outside_are_counted_over_all_groups(build: Build) -> None:
    groups = batch_of(4, features=(2, 3), outside=True), batch_of(1, features=(0, 1, 4, 5))
    groups[1].values[-1:] = 25
    rows = np.repeat([11, 17], groups[0].lengths.sum(axis=1))
    outside = (groups[0].values < 0) | (groups[0].values >= rows)
    counted = look_up(build(ROWS), ModelInput(4, groups, ())).ids_outside
    assert counted == outside.sum() + 1 > 1


def test_more_patterns_of_sharing_than_are_kept_are_served(
    build: Build, stored: dict[str, torch.Tensor]
) -> None:
    lookup = build(MIXED)
    size = 3
    for pattern in range(1, 2 ** len(FEATURES) - 1):
        shared = [f for f in FEATURES if pattern >> f & 1]
        own = [f for f in FEATURES if f not in shared]
        groups = batch_of(size, features=own), batch_of(1, features=shared)
        pooled = pooled_by(lookup, *groups).numpy()
        by_feature = {}
        for group in groups:
            numbers, column = expected(stored, group), 0
            for feature in group.features:
                dim = SPEC.features[feature].table.dim
                by_feature[feature] = numbers[:, column : column + dim].repeat(
                    size // group.batch_size, axis=0
                )
                column += dim
        wanted = np.concatenate([by_feature[feature] for feature in FEATURES], axis=1)
        np.testing.assert_allclose(pooled, wanted, rtol=1e-5, atol=1e-5)


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


def merged_input(own: JaggedBatch, shared: JaggedBatch, repeats: Sequence[int]) -> ModelInput:
    """A merged batch: bags of each sample, and bags of each request for `repeats` samples."""
    return ModelInput(
        sum(repeats), (own, shared), (), ids_checked=True, repeats=np.array(repeats, np.int64)
    )


def bags_between(group: JaggedBatch, start: int, stop: int) -> JaggedBatch:
    ends = np.cumsum(group.lengths).reshape(group.lengths.shape)
    begins = ends - group.lengths
    spans = [slice(b[start], e[stop - 1]) for b, e in zip(begins, ends, strict=True)]
    return JaggedBatch(
        group.features,
        np.concatenate([group.values[span] for span in spans]),
        group.lengths[:, start:stop],
        None if group.weights is None else np.concatenate([group.weights[s] for s in spans]),
    )


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("repeats", [(1, 4, 1), (2, 2), (1, 1, 1), (5,), (3, 1, 2, 2)])
@pytest.mark.parametrize("shared", [(0,), (2, 3), (1, 3, 5), (0, 1, 2, 4, 5)])
@pytest.mark.parametrize("plan", PLANS)
def test_bags_that_requests_share_are_repeated_for_their_samples_to_the_bit(
    build: Build, plan: str, shared: tuple[int, ...], repeats: tuple[int, ...], weighted: bool
) -> None:
    lookup = build(PLANS[plan])
    own = tuple(feature for feature in FEATURES if feature not in shared)
    mine = batch_of(sum(repeats), features=own, seed=1, weighted=weighted)
    theirs = batch_of(len(repeats), features=shared, seed=2, weighted=weighted)
    pooled, outside, *_ = look_up(lookup, merged_input(mine, theirs, repeats))
    assert outside == 0
    start = 0
    for number, size in enumerate(repeats):
        stop = start + size
        alone = pooled_by(
            lookup, bags_between(mine, start, stop), bags_between(theirs, number, number + 1)
        )
        assert torch.equal(pooled[start:stop], alone)
        start = stop


@pytest.mark.parametrize("plan", PLANS)
def test_requests_that_share_every_feature_are_repeated_too(build: Build, plan: str) -> None:
    lookup = build(PLANS[plan])
    theirs = batch_of(3, seed=4)
    counts = np.array([2, 1, 4])
    asked = ModelInput(7, (theirs,), (), ids_checked=True, repeats=counts)
    pooled = look_up(lookup, asked).pooled
    repeated = pooled_by(lookup, theirs).repeat_interleave(torch.from_numpy(counts), dim=0)
    assert torch.equal(pooled, repeated)


# ---------------------------------------------------------------- what lookups were


def naive_work(
    rectangles: Mapping[str, Rectangles], groups: Sequence[JaggedBatch], repeats: Sequence[int]
) -> tuple[dict[int, list[int]], int]:
    """Rows and bytes by rank, and rows saved, counted id by id; all groups but the first share."""
    by_rank: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    saved = 0
    for group in groups:
        shares = group is not groups[0]
        ends = np.cumsum(group.lengths.ravel()).reshape(group.lengths.shape)
        for at, feature in enumerate(group.features):
            table = SPEC.features[feature].table
            whole = [(0, 0, table.rows, 0, table.dim)]
            for bag, (end, length) in enumerate(zip(ends[at], group.lengths[at], strict=True)):
                for one in group.values[end - length : end]:
                    for rank, first, last, left, right in rectangles.get(table.name, whole):
                        if first <= one < last:
                            by_rank[rank][0] += 1
                            row_bytes = SPEC.row_format(table).row_bytes(right - left)
                            by_rank[rank][1] += row_bytes
                            saved += repeats[bag] - 1 if shares else 0
    return dict(by_rank), saved


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("form", ["own", "shared by all", "shared by some"])
def test_the_work_of_a_lookup_is_what_was_asked_for(build: Build, plan: str, form: str) -> None:
    lookup = build(PLANS[plan])
    if form == "own":
        groups, repeats = [batch_of(BATCH)], [1] * BATCH
    elif form == "shared by all":
        groups = [batch_of(BATCH, features=FEATURES[:2]), batch_of(1, features=FEATURES[2:])]
        repeats = [BATCH]
    else:
        groups = [batch_of(BATCH, features=FEATURES[:3]), batch_of(3, features=FEATURES[3:])]
        repeats = [1, 3, 2]
    given = np.array(repeats) if form == "shared by some" else None
    model_input = ModelInput(BATCH, tuple(groups), (), ids_checked=True, repeats=given)
    work = look_up(lookup, model_input).work
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for rank, rows, row_bytes, seconds in work.steps:
        assert 0.0 < seconds < 10.0
        found[rank][0] += rows
        found[rank][1] += row_bytes
    by_rank, saved = naive_work(PLANS[plan], groups, repeats)
    assert {rank: counts for rank, counts in found.items() if counts[0]} == by_rank
    assert work.rows_saved == saved
    assert (saved > 0) is (form != "own")


def test_sums_have_the_same_bits_wherever_in_memory_rows_lie(
    stored: dict[str, torch.Tensor],
) -> None:
    group = batch_of(60, seed=3, weighted=True)
    placed = place(
        plan_of(WHOLE), TABLES, {name: in_three(name, rows) for name, rows in stored.items()}
    )
    ascending, descending = (
        pooled_by(PlanLookups(SPEC, placed, hold(placed, pieces)), group)
        for pieces in (pieces_at(stored, order) for order in ((0, 1, 2), (2, 1, 0)))
    )
    assert torch.equal(ascending, descending)


def in_three(name: str, rows: torch.Tensor) -> list[PieceRecord]:
    records, first = [], 0
    for number, part in enumerate(rows.tensor_split(3)):
        records.append(PieceRecord(f"{name}-{number}", name, first, len(part)))
        first += len(part)
    return records


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
