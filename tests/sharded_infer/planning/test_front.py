from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.row_format import RowFormat
from sharded_infer.errors import PlanError
from sharded_infer.planning.cost_model import CostModel, plan_key
from sharded_infer.planning.front_traffic import Traffic, traffic_by_host
from sharded_infer.planning.plan import Plan, Shard, StoredTable, dump_plan, load_plan
from sharded_infer.planning.plan_result import figures_of
from sharded_infer.planning.replanner import replan
from sharded_infer.planning.table_use import TableUse, table_uses
from sharded_infer.planning.topology import Device, FrontCosts, Topology
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.planning.test_planner import checked, load_of, plain, tables_used

FRONT = FrontCosts(
    host=0, call_seconds=1e-4, round_trip_seconds=5e-4, send_bandwidth=1e6, receive_bandwidth=2e6
)
SMALL_HOT = plain("small", 100, 68, 20)
LARGE = plain("large", 100_000, 68)


def topology_of(*memories: int | None, front: FrontCosts | None = FRONT) -> Topology:
    """A rank on each host, the first of them host 0."""
    devices = (Device(host=host, memory_bytes=memory) for host, memory in enumerate(memories))
    return Topology("hosts", tuple(devices), front=front)


def hosts_by_table(plan: Plan) -> dict[str, set[int]]:
    hosts: dict[str, set[int]] = {}
    for shard in plan.shards:
        hosts.setdefault(shard.table, set()).add(plan.topology.devices[shard.rank].host)
    return hosts


# 10 samples of two features with 3 ids in all; 300 rows need ids of two bytes.
@pytest.mark.parametrize(
    ("shards", "by_host", "front_seconds"),
    [
        ([(0, 0, 300, 0, 8)], {}, 0.0),
        # 30 ids of 2 bytes and 20 lengths; 20 sums of 8 columns.
        ([(1, 0, 300, 0, 8)], {1: Traffic(80, 640)}, 1e-4 + 80e-6 + 320e-6),
        # A column shard gets all ids.
        (
            [(1, 0, 300, 0, 4), (2, 0, 300, 4, 8)],
            {1: Traffic(80, 320), 2: Traffic(80, 320)},
            2e-4 + 160e-6 + 320e-6,
        ),
        # A row shard gets its own ids, all lengths, and answers whole vectors.
        (
            [(1, 0, 100, 0, 8), (2, 100, 300, 0, 8)],
            {1: Traffic(40, 640), 2: Traffic(60, 640)},
            2e-4 + 100e-6 + 640e-6,
        ),
        ([(0, 0, 100, 0, 8), (2, 100, 300, 0, 8)], {2: Traffic(60, 640)}, 1e-4 + 60e-6 + 320e-6),
    ],
)
def test_a_front_pays_for_calls_ids_and_sums(
    shards: list[tuple[int, int, int, int, int]], by_host: dict[int, Traffic], front_seconds: float
) -> None:
    features = (FeatureStatistics(1.0), FeatureStatistics(2.0))
    use = TableUse(StoredTable("t", 300, 8, RowFormat.INT8), features)
    load = CostModel({"t": use}, topology_of(None, None, None), batch=10)
    plan = Plan(load.topology, tuple(Shard("t", *place) for place in shards))
    found = traffic_by_host(plan, load)
    assert found.keys() == by_host.keys()
    for host, traffic in by_host.items():
        assert found[host].sent == pytest.approx(traffic.sent)
        assert found[host].received == pytest.approx(traffic.received)
    figures = figures_of(plan, load)
    assert figures.front_seconds == pytest.approx(front_seconds)
    assert figures.request_seconds == pytest.approx(front_seconds + max(figures.seconds))
    # Hosts are asked at once: each has one round trip, and the front's own ranks none.
    for shard in plan.shards:
        device = load.topology.devices[shard.rank]
        waited = FRONT.round_trip_seconds if device.host else 0.0
        expected = device.launch_seconds + load.seconds(shard) + waited
        assert figures.seconds[shard.rank] == pytest.approx(expected)


def test_rows_of_a_sequence_are_sent_one_by_one() -> None:
    table = TableSpec("t", 300, 8, pooling="mean", features=("a", "b"), format=RowFormat.INT8)
    known = {"a": FeatureStatistics(1.0), "b": FeatureStatistics(2.0)}
    sequence = SequenceSpec(50, features=("b",))
    [use] = table_uses(ModelSpec("m", (table,), statistics=known, sequences={"b": sequence}))
    assert (use.pooling_factor, use.vectors) == (3.0, 3.0)
    load = CostModel({"t": use}, topology_of(None, None), batch=10)
    found = traffic_by_host(Plan(load.topology, (Shard("t", 1, 0, 300, 0, 8),)), load)
    # 30 ids of 2 bytes, 10 bags and 20 rows; as many vectors of 8 columns.
    assert found == {1: Traffic(60 + 30, 30 * 8 * 4)}
    pooled = CostModel({"t": replace(use, unpooled=())}, load.topology, batch=10)
    assert plan_key(pooled) != plan_key(load)
    rates = load.rates("t", load.topology.devices[1])
    assert (rates.ids, rates.vectors) == (30.0, 30.0)


def test_a_sequence_is_as_long_as_it_may_be_where_nothing_is_known() -> None:
    table = TableSpec("t", 300, 8)
    spec = ModelSpec("m", (table,), sequences={"t": SequenceSpec(50, features=("t",))})
    assert table_uses(spec)[0].vectors == 50
    assert table_uses(spec, {"t": FeatureStatistics(80.0)})[0].pooling_factor == 50
    assert table_uses(spec, {"t": FeatureStatistics(7.0)})[0].vectors == 7


def test_a_small_hot_table_is_kept_and_the_reason_is_told() -> None:
    result = checked(load_of([SMALL_HOT, LARGE], topology_of(10_000, 10**8)))
    assert hosts_by_table(result.plan) == {"small": {0}, "large": {1}}
    # 1024 samples of 20 ids of a byte and a length; 64 columns come back.
    saved = 1024 * (20 + 1) + 1024 * 64 * 4
    assert saved == 283_648
    assert result.decisions == (
        "small: kept by the front, which saves 284 kB a request for 6.80 kB of memory",
        "the front's memory has no room for large",
        "hosts that the front asks: 1",
    )


def test_the_table_that_saves_most_for_its_memory_is_kept() -> None:
    uses = [plain("cold", 100, 68, 1), plain("hot", 100, 68, 300), LARGE]
    kept = hosts_by_table(checked(load_of(uses, topology_of(10_000, 10**8))).plan)
    assert kept == {"hot": {0}, "cold": {1}, "large": {1}}


def test_a_front_with_room_for_all_leaves_hosts_the_work_that_they_share() -> None:
    heavy = [plain(f"heavy{i}", 1000 + i, 68, 200) for i in range(8)]
    light = [plain(f"light{i}", 1000 + i, 68) for i in range(8)]
    topology = topology_of(None, None, None, None, front=FrontCosts(0))
    result = checked(load_of([*heavy, *light], topology))
    hosts = hosts_by_table(result.plan)
    assert all(hosts[use.table.name] == {0} for use in light)
    assert sum(hosts[use.table.name] != {0} for use in heavy) >= 4
    assert any("hosts are faster for heavy" in decision for decision in result.decisions)
    assert result.gap < 0.2


def test_a_network_that_costs_more_is_used_less() -> None:
    uses = [plain(f"t{i}", 20_000, 132, 30) for i in range(12)]
    asked = []
    for factor in (0.01, 1, 100):
        front = FrontCosts(0, 1e-4 * factor, 2e-4 * factor, 1e9 / factor, 2e9 / factor)
        load = load_of(uses, topology_of(None, None, None, None, front=front))
        asked.append(len(traffic_by_host(checked(load).plan, load)))
    assert asked == sorted(asked, reverse=True) and asked[0] == 3 and asked[-1] == 0
    # Where memory does not allow fewer, so many are asked all the same.
    stored = sum(use.table.stored_bytes for use in uses)
    load = load_of(uses, topology_of(*[round(stored * 0.26)] * 4, front=front))
    assert len(traffic_by_host(checked(load).plan, load)) == 3


@settings(max_examples=20)
@given(
    tables_used(),
    st.lists(st.one_of(st.none(), st.integers(1, 20_000)), min_size=2, max_size=4),
    st.sampled_from([FRONT, FrontCosts(0), FrontCosts(1), FrontCosts()]),
)
def test_a_plan_with_a_front_covers_everything_and_fits_or_there_is_too_much(
    uses: list[TableUse], memories: list[int | None], front: FrontCosts
) -> None:
    load = load_of(uses, topology_of(*memories, front=front))
    try:
        result = checked(load)
    except PlanError:
        # Tables are not cut between the front and hosts.
        largest = max(use.table.stored_bytes for use in uses)
        assert None not in memories
        room = sum(max(0, memory - largest) for memory in memories if memory is not None)
        assert sum(use.table.stored_bytes for use in uses) > room
        return
    assert result.plan.key == plan_key(load) and not result.plan.replicated
    assert load_plan(dump_plan(result.plan)) == result.plan


def test_a_plan_of_before_has_no_front_and_the_same_key() -> None:
    load = load_of([SMALL_HOT, LARGE], topology_of(None, None, front=None))
    plan = checked(load).plan
    assert b"front" not in dump_plan(plan)
    with_front = load_of([SMALL_HOT, LARGE], topology_of(None, None))
    assert plan_key(load) == plan.key != plan_key(with_front)


def test_a_plan_with_a_front_is_replanned() -> None:
    load = load_of([SMALL_HOT, LARGE], topology_of(10_000, 10**8))
    before = checked(load).plan
    again = replan(load_of([SMALL_HOT, LARGE, plain("new", 50, 68)], load.topology), before)
    assert {name: hosts_by_table(again.result.plan)[name] for name in ("small", "large")} == {
        "small": {0}, "large": {1},
    }  # fmt: skip
    assert sum(move.bytes for move in again.moves) == 50 * 68


def test_a_file_names_the_front_and_its_costs(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    devices = "[[devices]]\nhost = 0\n[[devices]]\nhost = 2\n"
    path.write_text(f"{devices}[front]\nhost = 2\ncall_seconds = 1e-5\n")
    topology = parse_topology(str(path))
    assert topology.front == FrontCosts(host=2, call_seconds=1e-5)
    assert [topology.is_asked(device) for device in topology.devices] == [True, False]
    path.write_text(f"{devices}[front]\n")
    assert parse_topology(str(path)).front == FrontCosts()
    path.write_text(f"{devices}[front]\nhost = 1\n")
    with pytest.raises(PlanError, match=r"front\.host: expected one of 0, 2, or none .*, got 1"):
        parse_topology(str(path))
    path.write_text(f"{devices}[front]\nsend_bandwidth = 0\n")
    with pytest.raises(PlanError, match=r"front\.send_bandwidth: .* greater than 0, got 0"):
        parse_topology(str(path))
