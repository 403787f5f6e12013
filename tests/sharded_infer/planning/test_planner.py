from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.row_format import RowFormat
from sharded_infer.errors import PlanError
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.id_map_memory import map_bytes_of
from sharded_infer.planning.plan import Plan, Shard, StoredTable, check_plan, dump_plan, load_plan
from sharded_infer.planning.plan_result import PlanResult, figures_of
from sharded_infer.planning.planner import TIME_RESOLUTION, fits, make_plan
from sharded_infer.planning.search.advice import with_lower_formats, with_more_ranks
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology import Device, FrontCosts, Topology
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.specs.feature_statistics import FeatureStatistics


@st.composite
def tables_used(draw: st.DrawFn) -> list[TableUse]:
    shapes = st.tuples(st.integers(1, 200), st.integers(1, 40), st.sampled_from(RowFormat))
    bins = st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple)
    use = st.tuples(st.floats(0, 50), st.one_of(st.none(), st.floats(0, 2)), bins)
    drawn = draw(st.lists(st.tuples(shapes, use), min_size=1, max_size=8))
    return [
        TableUse(StoredTable(f"t{i}", *shape), (FeatureStatistics(*statistics),))
        for i, (shape, statistics) in enumerate(drawn)
    ]


DEVICE_MODELS = st.sampled_from(["cpu", "h100", "l4"])


def load_of(uses: list[TableUse], topology: Topology | str) -> CostModel:
    parsed = parse_topology(topology) if isinstance(topology, str) else topology
    return CostModel({use.table.name: use for use in uses}, parsed)


def checked(load: CostModel) -> PlanResult:
    result = make_plan(load)
    check_plan(result.plan, {name: use.table for name, use in load.uses.items()})
    assert result.figures == figures_of(result.plan, load)
    assert result.figures.request_seconds >= result.bound_seconds * (1 - 1e-6)
    return result


def plain(name: str, rows: int, row_bytes: int, ids: float = 1.0) -> TableUse:
    table = StoredTable(name, rows, row_bytes - 4, RowFormat.INT8)
    return TableUse(table, (FeatureStatistics(pooling_factor=ids),))


def topology_of(memories: list[int | None]) -> Topology:
    (device,) = parse_topology("cpu").devices
    return Topology("test", tuple(replace(device, memory_bytes=memory) for memory in memories))


@settings(max_examples=20)
@given(tables_used(), st.lists(st.none() | st.integers(1, 20_000), min_size=1, max_size=5))
def test_a_plan_covers_everything_and_fits_or_there_is_too_much(
    uses: list[TableUse], memories: list[int | None]
) -> None:
    try:
        checked(load_of(uses, topology_of(memories)))
    except PlanError:
        # Rows are whole: of each rank's memory, less than a row per rank can be left unused.
        largest_row = max(use.table.row_bytes for use in uses)
        assert None not in memories
        room = sum(max(0, memory - largest_row + 1) for memory in memories if memory is not None)
        assert sum(use.table.stored_bytes for use in uses) > room


@settings(max_examples=20)
@given(tables_used(), DEVICE_MODELS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_tables(
    uses: list[TableUse], model: str, ranks: int, random: Random
) -> None:
    topology = parse_topology(f"{model}:{ranks}")
    shuffled = random.sample(uses, len(uses))
    assert make_plan(load_of(shuffled, topology)) == make_plan(load_of(uses, topology))


@settings(max_examples=20)
@given(tables_used(), st.permutations(["h100:1", "l4:1", "cpu:1", "h100:1"]))
def test_the_order_of_devices_does_not_change_the_cost(
    uses: list[TableUse], order: list[str]
) -> None:
    sorted_result = checked(load_of(uses, "+".join(sorted(order))))
    result = checked(load_of(uses, "+".join(order)))
    assert result.figures.max_seconds == pytest.approx(sorted_result.figures.max_seconds, rel=1e-9)


def mixed_topologies() -> st.SearchStrategy[list[Device]]:
    """Two to five devices of several kinds and memories on up to three hosts."""
    names, memories = st.sampled_from(["h100:1", "l4:1", "cpu:1"]), st.sampled_from([None, 30_000])

    def device_of(name: str, host: int, memory: int | None) -> Device:
        (device,) = parse_topology(name).devices
        return replace(device, host=host, memory_bytes=memory)

    devices = st.builds(device_of, names, st.integers(0, 2), memories)
    return st.lists(devices, min_size=2, max_size=5)


@settings(max_examples=60)
@given(tables_used(), mixed_topologies(), st.data())
def test_more_devices_of_any_kind_never_make_it_slower(
    uses: list[TableUse], devices: list[Device], data: st.DataObject
) -> None:
    kept = data.draw(st.sets(st.sampled_from(range(len(devices))), min_size=1))
    some = Topology("fewer", tuple(devices[rank] for rank in sorted(kept)))
    try:
        fewer = checked(load_of(uses, some))
    except PlanError:
        return
    more = checked(load_of(uses, Topology("more", tuple(devices))))
    assert more.figures.max_seconds <= fewer.figures.max_seconds * (1 + 1e-9)


def test_a_slow_device_beside_fast_ones_is_left_out_with_its_replicas() -> None:
    uses = [plain(f"t{i}", 10 ** (2 + i % 4), 68, 1 + i % 7) for i in range(26)]
    alone = checked(load_of(uses, "h100:2x20GB"))
    both = checked(load_of(uses, "h100:2x20GB+cpu:1x64GB"))
    assert alone.plan.replicated and both.plan.replicated == alone.plan.replicated
    assert both.figures.max_seconds == pytest.approx(alone.figures.max_seconds, rel=1e-9)
    assert both.plan.unused == (2,) and both.figures.bytes[2] == 0 and both.gap < 0.1
    assert both.decisions[-1].startswith("rank 2 is not used")
    # Readers of before take plans that use every rank.
    assert b"unused" in dump_plan(both.plan) and b"unused" not in dump_plan(alone.plan)
    assert load_plan(dump_plan(both.plan)) == both.plan


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_no_placement_of_whole_tables_is_faster(shapes: list[tuple[int, int]], ranks: int) -> None:
    uses = [plain(f"t{i}", 1, 4 + 16 * dim, ids) for i, (dim, ids) in enumerate(shapes)]
    load = load_of(uses, f"h100:{ranks}")

    def seconds(placement: tuple[int, ...]) -> float:
        ranked = zip(uses, placement, strict=True)
        shards = (Shard(use.table.name, rank, 0, 1, 0, use.table.dim) for use, rank in ranked)
        return figures_of(Plan(load.topology, tuple(shards)), load).max_seconds

    best = min(map(seconds, product(range(ranks), repeat=len(uses))))
    assert checked(load).figures.max_seconds <= best * (1 + TIME_RESOLUTION)


def test_a_table_that_fits_nowhere_whole_is_cut_by_rows() -> None:
    result = checked(load_of([plain("a", 10, 10)], topology_of([45, 68])))
    assert sum(s.rows for s in result.plan.shards if s.rank == 0) <= 4
    assert sum(s.rows for s in result.plan.shards if s.rank == 1) >= 6
    assert "a: fits no rank whole, cut by rows over ranks 1, 0" in result.decisions


def test_a_table_whose_parts_fit_at_one_size_only_is_planned() -> None:
    use = TableUse(StoredTable("a", 686, 56, RowFormat.INT8))
    checked(load_of([use], topology_of([20_580, 20_580])))


def test_what_does_not_fit_is_refused_with_what_would_help() -> None:
    table = StoredTable("big", 1000, 64, RowFormat.BF16)
    with pytest.raises(PlanError) as refusal:
        make_plan(load_of([TableUse(table), plain("small", 10, 10)], topology_of([60_000, 60_000])))
    words = str(refusal.value)
    assert "128100 bytes" in words and "8100 bytes too many" in words and "'big' 128 kB" in words
    assert "store 'big' as int8 (60.0 kB less)" in words
    assert "add 1 rank of 60.0 kB" in words


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_advice_that_is_followed_works(data: st.DataObject) -> None:
    formats = st.sampled_from([RowFormat.FP32, RowFormat.INT8])
    table = st.tuples(st.integers(1, 20_000), st.integers(1, 64), formats, st.booleans())
    uses = [
        TableUse(
            StoredTable(f"t{n}", rows, dim, row_format),
            map_bytes=map_bytes_of(rows) if mapped else 0,
            in_parts=mapped and data.draw(st.booleans()),
        )
        for n, (rows, dim, row_format, mapped) in enumerate(
            data.draw(st.lists(table, min_size=1, max_size=4))
        )
    ]
    memory = data.draw(st.lists(st.integers(100_000, 1_000_000), min_size=1, max_size=4))
    hosts = data.draw(st.booleans())
    devices = tuple(
        Device(memory_bytes=size, host=n if hosts else 0) for n, size in enumerate(memory)
    )
    front = FrontCosts(host=0) if hosts and data.draw(st.booleans()) else None
    load = load_of(uses, Topology("some", devices, front=front))
    if fits(load):
        checked(load)
        return
    with pytest.raises(PlanError) as refusal:
        make_plan(load)
    words = str(refusal.value)
    assert "-" not in words.partition(" too many")[0].rpartition(": ")[2]
    lower, wider = with_lower_formats(load, fits), with_more_ranks(load, fits)
    for followed in (lower, wider):
        if followed is not None:
            checked(followed)
    assert ("store " in words, "add " in words) == (lower is not None, wider is not None)


def test_a_heavy_table_is_cut_and_the_reason_is_told() -> None:
    uses = [plain("heavy", 10**6, 132, 100), *(plain(f"t{i}", 1000, 68) for i in range(20))]
    result = checked(load_of(uses, "h100:4"))
    assert len({s.rank for s in result.plan.shards if s.table == "heavy"}) > 1
    assert any(decision.startswith("heavy: ") for decision in result.decisions)


def test_small_tables_are_replicated_where_sending_costs() -> None:
    uses = [plain("large", 10**7, 132), *(plain(f"t{i}", 10, 68) for i in range(5))]
    assert set(checked(load_of(uses, "h100:2")).plan.replicated) == {f"t{i}" for i in range(5)}
    assert checked(load_of(uses, "cpu:2")).plan.replicated == ()


def test_rows_that_are_used_more_weigh_more() -> None:
    table = StoredTable("skewed", 1000, 124, RowFormat.INT8)
    hot = TableUse(table, (FeatureStatistics(50, histogram=(0.9, 0.1)),))
    load = load_of([hot], "h100:2")
    first, second = (
        load.seconds(Shard("skewed", 0, *rows, 0, 124)) for rows in ((0, 500), (500, 1000))
    )
    assert first > 3 * second
    result = checked(load)
    assert result.gap < 0.15
    ends = sorted(s.last_row for s in result.plan.shards if s.first_column == 0)
    if len(ends) > 1:
        assert ends[0] < 600


def test_column_shards_keep_vector_loads_whole() -> None:
    uses = [plain(f"t{i}", 100, 132, 1) for i in range(5)]
    for shard in checked(load_of(uses, "h100:4")).plan.shards:
        assert shard.first_column % 16 == 0
        assert shard.last_column % 16 == 0 or shard.last_column == 128


def test_large_tables_of_little_use_go_to_the_host() -> None:
    cold = [plain(f"cold{i}", 10**8, 68, 0.001) for i in range(4)]
    hot = [plain(f"hot{i}", 10**5, 132, 20) for i in range(8)]
    result = checked(load_of([*cold, *hot], "h100:2x8GB+cpu:1x100GB"))
    on_host = {shard.table for shard in result.plan.shards if shard.rank == 2}
    assert not on_host & {use.table.name for use in hot}
    assert on_host & {use.table.name for use in cold}
