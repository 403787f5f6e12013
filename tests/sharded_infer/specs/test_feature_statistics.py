import numpy as np
import pytest

from kernels.row_format import RowFormat
from sharded_infer.planning.cost_model import CostModel, plan_key
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.specs.feature_statistics import (
    FeatureStatistics,
    count_statistics,
    share_of_hottest,
)


def test_pooling_factors_and_histograms_are_counted() -> None:
    counted = count_statistics([[0, 1], [], [3], [99]], rows=4)
    assert counted.pooling_factor == 1.0
    assert counted.histogram == (1 / 3, 1 / 3, 0.0, 1 / 3)


@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.2])
def test_the_exponent_of_a_power_law_is_found(exponent: float) -> None:
    weights = 1 / np.arange(1, 2001) ** exponent
    ids = np.random.default_rng(3).choice(2000, 200_000, p=weights / weights.sum())
    found = count_statistics([ids.tolist()], rows=2000).zipf
    assert found == pytest.approx(exponent, abs=0.12)


@pytest.mark.parametrize(
    ("zipf", "hottest", "share"), [(0.8, 0.01, 0.38), (1.0, 0.01, 0.72), (1.2, 0.1, 0.98)]
)
def test_the_hottest_rows_take_their_known_share(zipf: float, hottest: float, share: float) -> None:
    # Ideal caching of 1e7 rows, as measured elsewhere; the integrals are a few points off.
    assert share_of_hottest(zipf, 1e7, hottest * 1e7) == pytest.approx(share, abs=0.07)


def load_of(features: tuple[FeatureStatistics, ...], gpu: str = "h100") -> CostModel:
    table = StoredTable("t", 1000, 60, RowFormat.INT8)
    return CostModel({"t": TableUse(table, features)}, parse_topology(f"{gpu}:2"), 100)


def test_a_shard_costs_what_the_formula_says() -> None:
    load = load_of((FeatureStatistics(3.0),))
    device = load.topology.devices[0]
    assert device.peer_bandwidth is not None
    read = 100 * 3 * (64 + 31) / device.memory_bandwidth
    out = 100 * 60 * 4 * (1 / device.memory_bandwidth + 1 / device.peer_bandwidth)
    ids = 100 * 3 * 8 / device.host_bandwidth
    assert load.seconds(Shard("t", 0, 0, 1000, 0, 60)) == pytest.approx(read + out + ids)


def test_known_skew_makes_reads_cheaper() -> None:
    even, skewed = load_of((FeatureStatistics(9.0),)), load_of((FeatureStatistics(9.0, zipf=1.2),))
    shard = Shard("t", 0, 0, 1000, 0, 60)
    assert skewed.seconds(shard) < even.seconds(shard)


def test_replicas_share_the_work_and_send_nothing() -> None:
    load = load_of((FeatureStatistics(3.0),))
    (one, two) = load.device_seconds(Plan(load.topology, (), replicated=("t",)))
    device = load.topology.devices[0]
    whole = load.seconds(Shard("t", 0, 0, 1000, 0, 60))
    assert one == two < device.launch_seconds + whole / 2


def test_a_plans_key_depends_on_all_that_matters_and_on_no_names_order() -> None:
    base = load_of((FeatureStatistics(3.0),))
    keys = {
        plan_key(base),
        plan_key(load_of((FeatureStatistics(3.5),))),
        plan_key(load_of((FeatureStatistics(3.0),), "l4")),
        plan_key(CostModel(base.uses, base.topology, 200)),
    }
    assert len(keys) == 4
    assert plan_key(load_of((FeatureStatistics(3.0),))) == plan_key(base)
