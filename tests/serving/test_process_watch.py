"""What a worker says of itself: from a real process, a real store and a real queue."""

from pathlib import Path
from time import monotonic

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.lane import Ticket
from serving.metric_family import Detail
from serving.metrics import Metrics
from serving.model_store import ModelStore, report_dropped, report_loaded
from serving.process_watch import ProcessWatch
from sharded_infer.golden import generate_samples
from sharded_infer.repository import Repository
from tests.serving.conftest import MODEL, Ranker


def page_of(metrics: Metrics) -> dict[str, float]:
    """The page's samples by name; of series with several label values the last."""
    text = generate_latest(metrics.registry).decode()
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def store(ranker: Ranker, metrics: Metrics) -> ModelStore:
    store = ModelStore(Repository(ranker.repository), metrics, topology=None, max_batch=16)
    store.load(MODEL)
    return store


def test_the_oldest_request_has_the_age_of_the_look_and_none_has_none(
    store: ModelStore, metrics: Metrics
) -> None:
    watch = ProcessWatch(store, metrics)
    [snapshot] = store.snapshots()
    now = monotonic()
    watch.look(now)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == 0.0
    # The most pressing is not the oldest.
    tickets = [
        Ticket(snapshot.lane, samples=1, arrived=now - 0.25, priority=10),
        Ticket(snapshot.lane, samples=1, arrived=now - 0.125, priority=1),
    ]
    for ticket in tickets:
        snapshot.lane.add(ticket)
    assert snapshot.lane.head() is tickets[1]
    snapshot.metrics.queue(requests=2, samples=2)
    watch.look(now)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == pytest.approx(0.25)
    # All of them are run after the look at the lane, and before what it found is said.
    snapshot.metrics.queue(requests=0, samples=0)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == 0.0
    watch.look(now)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == 0.0


def test_gauges_of_a_version_that_is_let_go_are_zero_and_its_objective_stays(
    store: ModelStore, metrics: Metrics
) -> None:
    [snapshot] = store.snapshots()
    report_loaded(snapshot)
    lookups = snapshot.metrics.lookups
    assert lookups is not None
    lookups.rows.take(generate_samples(snapshot.model.spec, 4))
    snapshot.metrics.queue(requests=1, samples=1)
    snapshot.metrics.oldest(0.5)
    ProcessWatch(store, metrics).look(monotonic())
    gauges = ("model_loaded", "table_bytes", "rank_memory_bytes", "hot_row_share", "queue_requests")
    before = page_of(metrics)
    assert all(before[f"sharded_infer_{gauge}"] > 0 for gauge in gauges)
    report_dropped(snapshot)
    # A look that had begun before.
    lookups.hot_rows(0.25)
    snapshot.metrics.oldest(0.75)
    after = page_of(metrics)
    assert [after[f"sharded_infer_{gauge}"] for gauge in (*gauges, "queue_oldest_seconds")] == [
        0
    ] * 6
    assert after["sharded_infer_latency_objective_seconds"] == 0.06


def test_processor_time_and_memory_are_the_process_own(store: ModelStore, metrics: Metrics) -> None:
    watch = ProcessWatch(store, metrics)
    watch.look(monotonic())
    first = page_of(metrics)
    assert first["sharded_infer_worker_cpu_seconds_total"] > 0.0
    resident_kib = int(
        next(
            line.split()[1]
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )
    )
    resident = first["sharded_infer_worker_resident_bytes"]
    assert resident == pytest.approx(resident_kib * 1024, rel=0.1)
    sum(range(3_000_000))
    watch.look(monotonic())
    grown = page_of(metrics)["sharded_infer_worker_cpu_seconds_total"]
    burnt = grown - first["sharded_infer_worker_cpu_seconds_total"]
    assert 0.0 < burnt < 60.0, "counted on, not anew"


def test_huge_pages_of_all_kinds_are_added_up(
    store: ModelStore, metrics: Metrics, tmp_path: Path
) -> None:
    (tmp_path / "statm").write_text("100 50 0 0 0 0 0\n")
    lines = (
        "AnonHugePages: 2048 kB",
        "ShmemPmdMapped: 4096 kB",
        "FilePmdMapped: 0 kB",
        "Rss: 9 kB",
    )
    (tmp_path / "smaps_rollup").write_text("\n".join(lines))
    ProcessWatch(store, metrics, tmp_path).look(monotonic())
    assert page_of(metrics)["sharded_infer_worker_huge_page_bytes"] == 6144 * 1024


def test_where_not_everything_is_counted_nobody_looks(store: ModelStore) -> None:
    watch = ProcessWatch(store, Metrics(detail=Detail.BASIC))
    watch.start()
    watch.stop()
    assert (
        page_of(Metrics(detail=Detail.BASIC))
        .keys()
        .isdisjoint({"sharded_infer_worker_resident_bytes", "sharded_infer_queue_oldest_seconds"})
    )
