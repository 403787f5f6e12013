"""Families of tables and devices of the planner's benchmark, seeded, the same on every machine.

All tables are int8 with one feature, on H100s. A bag has one id unless a family says otherwise.
"Log-uniform" rows are as many between 1e3 and 1e4 as between 1e4 and 1e5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.row_format import RowFormat
from serving.bench.workloads.dlrm_v2 import DIM, IDS_OF_A_BAG, ROWS
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Shard, StoredTable
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology import Topology
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.specs.feature_statistics import FeatureStatistics

Integers = NDArray[np.int64]

SMALL_TABLES = "small-tables"
WIDE_RANGE = "wide-range"
MLPERF = "mlperf-dlrm-v2"
THREE_HOT = "three-hot-tables"
MANY_TABLES = "many-tables"
CURVE = "curve"

CURVE_SIZES = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
HOT_SHARE = 0.7
_SEED = 4  # one with which 500 tables of the wide range fit: 93% of the memory


@dataclass(frozen=True, slots=True)
class PlanCase:
    """Tables to plan on devices."""

    family: str
    uses: dict[str, TableUse]
    topology: Topology

    def load(self) -> CostModel:
        """A new cost model, so that no timing profits from earlier results."""
        return CostModel(self.uses, self.topology)


def quality_cases() -> tuple[PlanCase, ...]:
    """The four families that measure the quality of plans."""
    return (
        small_tables(),
        *(wide_range(tables) for tables in (100, 500, 2_000)),
        *(mlperf_dlrm_v2(devices) for devices in (1, 2, 8)),
        three_hot_tables(),
    )


def speed_cases() -> tuple[PlanCase, ...]:
    """The cases that measure the planner's speed."""
    return many_tables(5_000, 16), many_tables(50_000, 128)


def small_tables() -> PlanCase:
    """500 tables, dims 4 to 16, rows 2 to 1,000, 8 devices: many small tables."""
    random = _random(SMALL_TABLES, 500)
    rows, dims = random.integers(2, 1_001, 500), random.integers(4, 17, 500)
    return _case(SMALL_TABLES, rows, dims)


def wide_range(tables: int) -> PlanCase:
    """Rows log-uniform from 1e3 up, dims 16 to 256 in steps of 16, 8 devices of 80 GB.

    The upper end is 1e8: 500 such tables are 608 GB on average, 95% of the memory. 2,000 would be
    2.4 TB, so their upper end is 1.6e7, about three quarters of the memory.
    """
    return _log_uniform_case(WIDE_RANGE, tables, 1.6e7 if tables > 500 else 1e8)


def many_tables(tables: int, devices: int) -> PlanCase:
    """Rows log-uniform from 1e3 to 1e7, dims 16 to 256; 390 tables fill 3/4 of an 80 GB device."""
    return _log_uniform_case(MANY_TABLES, tables, 1e7, devices)


def curve_case(tables: int) -> PlanCase:
    """Rows log-uniform from 1e3 to 1e5, dims 16 to 256, on 8 devices: up to 50,000 tables fit."""
    return _log_uniform_case(CURVE, tables, 1e5)


def mlperf_dlrm_v2(devices: int) -> PlanCase:
    """MLPerf Inference's DLRM-v2: 26 tables of dim 128, with its numbers of ids a bag."""
    return _case(MLPERF, np.array(ROWS), np.full(len(ROWS), DIM), devices, IDS_OF_A_BAG)


def three_hot_tables() -> PlanCase:
    """300 tables of dim 64, three of which have 70% of the load; 8 devices.

    The others have 1 to 20 ids a bag; the three have equal numbers, from their load.
    """
    random = _random(THREE_HOT, 300)
    rows = _log_uniform(random, 1e7, 300)
    ids = random.integers(1, 21, 300).astype(np.float64)

    def case(hot_ids: float | NDArray[np.float64]) -> PlanCase:
        ids[:3] = hot_ids
        return _case(THREE_HOT, rows, np.full(300, 64), ids=ids.tolist())

    seconds, twice = _whole_seconds(case(1.0)), _whole_seconds(case(2.0))
    # A table's seconds are linear in its ids.
    wanted = float(seconds[3:].sum()) * HOT_SHARE / (1 - HOT_SHARE) / 3
    return case(1 + (wanted - seconds[:3]) / (twice[:3] - seconds[:3]))


def _random(family: str, tables: int) -> np.random.Generator:
    return np.random.default_rng([_SEED, tables, *family.encode()])


def _log_uniform(random: np.random.Generator, highest: float, count: int) -> Integers:
    return np.exp(random.uniform(np.log(1e3), np.log(highest), count)).astype(np.int64)


def _log_uniform_case(family: str, tables: int, highest: float, devices: int = 8) -> PlanCase:
    random = _random(family, tables)
    rows = _log_uniform(random, highest, tables)
    return _case(family, rows, 16 * random.integers(1, 17, tables), devices)


def _case(
    family: str,
    rows: Integers,
    dims: Integers,
    devices: int = 8,
    ids: Sequence[float] | None = None,
) -> PlanCase:
    uses = {}
    for index, (count, dim) in enumerate(zip(rows.tolist(), dims.tolist(), strict=True)):
        table = StoredTable(f"t{index:05}", count, dim, RowFormat.INT8)
        statistics = FeatureStatistics(pooling_factor=1.0 if ids is None else ids[index])
        uses[table.name] = TableUse(table, (statistics,))
    return PlanCase(family, uses, parse_topology(f"h100:{devices}x80GB"))


def _whole_seconds(case: PlanCase) -> NDArray[np.float64]:
    load = case.load()
    tables = [use.table for use in case.uses.values()]
    return np.array([load.seconds(Shard(t.name, 0, 0, t.rows, 0, t.dim)) for t in tables])
