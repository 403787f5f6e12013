import numpy as np
import pytest
from prometheus_client import generate_latest

from serving.metrics.families.family import Detail
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import MappedTable, VersionInfo
from serving.metrics.version_metrics import VersionMetrics
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.lookups.lookup_work import LookupWork
from tests.support.answered_requests import count_answered

FEATURES = ("user", "clicked", "country", "bought")
TABLES = (MappedTable("user", (0,), False), MappedTable("item", (1, 3), True))
REQUEST = (1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0)


def described(metrics: ServerMetrics, tables: tuple[MappedTable, ...] = TABLES) -> VersionMetrics:
    version = metrics.version("ranker", 1)
    version.describe(VersionInfo(0.06, (1,), ("score",), FEATURES, tables))
    return version


def count(metrics: ServerMetrics, family: str, table: str) -> float | None:
    begin = f'{family}_total{{model="ranker",table="{table}",version="1"}} '
    page = generate_latest(metrics.registry).decode()
    found = [line for line in page.splitlines() if line.startswith(begin)]
    return float(found[0].removeprefix(begin)) if found else None


def looked_up(version: VersionMetrics, *groups: JaggedBatch, samples: int) -> None:
    assert version.lookups is not None
    batch = ModelInput(samples, groups, (), ids_checked=True)
    version.lookups.looked_up(LookupWork([], 0), batch, (np.zeros(1, np.float32),))


def test_ids_of_batches_are_counted_by_table() -> None:
    metrics = ServerMetrics()
    version = described(metrics)
    lengths = np.array([[1, 1, 1], [2, 0, 3]])
    own = JaggedBatch((0, 1), np.zeros(8, np.int64), lengths)
    shared = JaggedBatch((2, 3), np.zeros(6, np.int64), np.array([[2], [4]]))
    looked_up(version, own, shared, samples=3)
    looked_up(version, own, shared, samples=3)
    assert count(metrics, "sharded_infer_ids_mapped", "user") == 6
    # What samples share is looked up in the map once.
    assert count(metrics, "sharded_infer_ids_mapped", "item") == 2 * (5 + 4)
    assert count(metrics, "sharded_infer_ids_mapped", "country") is None


@pytest.mark.parametrize("ends", ["answered", "failed"])
def test_unknown_ids_are_counted_when_a_request_ends(ends: str) -> None:
    metrics = ServerMetrics()
    version = described(metrics)
    readers = version.mapped_ids.unknown
    readers += (3, 2)
    assert count(metrics, "sharded_infer_ids_unknown", "user") == 0
    for _ in range(2):
        if ends == "answered":
            count_answered(version, [REQUEST])
        else:
            version.failed("RESOURCE_EXHAUSTED", 0.1)
        assert count(metrics, "sharded_infer_ids_unknown", "user") == 3
        assert count(metrics, "sharded_infer_ids_unknown", "item") == 2
    # Those that read shared rows are among the ids of a batch; those that left their bags are not.
    assert count(metrics, "sharded_infer_ids_mapped", "user") == 0
    assert count(metrics, "sharded_infer_ids_mapped", "item") == 2


def test_tables_without_a_place_of_their_own_are_counted_together() -> None:
    metrics = ServerMetrics()
    many = tuple(MappedTable(f"t{n}", (), False) for n in range(200))
    version = described(metrics, many)
    version.mapped_ids.unknown[[0, 126, 127, 199]] = (1, 2, 4, 8)
    count_answered(version, [REQUEST])
    found = [count(metrics, "sharded_infer_ids_unknown", f"t{n}") for n in (0, 126, 127)]
    assert found == [1, 2, None]
    assert count(metrics, "sharded_infer_ids_unknown", "(others)") == 12


def test_a_version_described_anew_begins_with_cells_of_its_own() -> None:
    metrics = ServerMetrics()
    before = described(metrics).mapped_ids.unknown
    version = described(metrics, TABLES[:1])
    before += 5
    version.mapped_ids.unknown += 1
    count_answered(version, [REQUEST])
    assert count(metrics, "sharded_infer_ids_unknown", "user") == 1


def test_unknown_ids_need_no_full_metrics_but_a_share_does() -> None:
    metrics = ServerMetrics(detail=Detail.BASIC)
    version = described(metrics)
    version.mapped_ids.unknown += 1
    count_answered(version, [REQUEST])
    assert count(metrics, "sharded_infer_ids_unknown", "item") == 1
    assert count(metrics, "sharded_infer_ids_mapped", "item") is None
