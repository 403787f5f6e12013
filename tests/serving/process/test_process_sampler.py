import os
from time import monotonic

import pytest

from serving.metrics.server_metrics import ServerMetrics
from serving.process.process_sampler import ProcessSampler
from serving.versions.served_versions import ServedVersions, report_dropped, report_loaded
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.repositories.repository import Repository
from tests.reference.request_queue import QueuedRequest
from tests.serving.inference.planes import samples_of
from tests.support.compiled_batcher import CompiledBatcher
from tests.support.server_processes import resident_bytes
from tests.support.servers import MODEL, Ranker


def page_of(metrics: ServerMetrics) -> dict[str, float]:
    """The page's samples by name; of series with several label values the last."""
    return {sample.name: sample.value for sample in samples_of(metrics)}


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics()


@pytest.fixture
def store(ranker: Ranker, metrics: ServerMetrics) -> ServedVersions:
    store = ServedVersions(Repository(ranker.repository), metrics, topology=None, max_batch=16)
    store.load(MODEL)
    return store


def test_the_oldest_request_has_the_age_of_the_look_and_none_has_none(
    store: ServedVersions, metrics: ServerMetrics
) -> None:
    watch = ProcessSampler(store.loaded_versions, metrics)
    [loaded_version] = store.loaded_versions()
    now = monotonic()
    watch.look(now)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == 0.0
    # The most pressing is not the oldest.
    tickets = [
        QueuedRequest(loaded_version.queue, samples=1, arrived=now - 0.25, priority=10),
        QueuedRequest(loaded_version.queue, samples=1, arrived=now - 0.125, priority=1),
    ]
    batcher = CompiledBatcher()
    batcher.add_queue(loaded_version.queue)
    for ticket in tickets:
        assert batcher.offer(ticket, now) is None
    loaded_version.metrics.queue(requests=2, samples=2)
    watch.look(now)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == pytest.approx(0.25)
    # All of them are run after the look at the lane, and before what it found is said.
    loaded_version.metrics.queue(requests=0, samples=0)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == 0.0
    watch.look(now)
    assert page_of(metrics)["sharded_infer_queue_oldest_seconds"] == 0.0


def test_gauges_of_a_version_that_is_unloaded_are_zero_and_its_objective_stays(
    store: ServedVersions, metrics: ServerMetrics
) -> None:
    [loaded_version] = store.loaded_versions()
    report_loaded(loaded_version)
    lookups = loaded_version.metrics.lookups
    assert lookups is not None
    lookups.rows.take(generate_samples(loaded_version.model.spec, 4))
    loaded_version.metrics.queue(requests=1, samples=1)
    loaded_version.metrics.oldest(0.5)
    ProcessSampler(store.loaded_versions, metrics).look(monotonic())
    gauges = ("model_loaded", "table_bytes", "rank_memory_bytes", "hot_row_share", "queue_requests")
    before = page_of(metrics)
    assert all(before[f"sharded_infer_{gauge}"] > 0 for gauge in gauges)
    report_dropped(loaded_version)
    # A look that had begun before.
    lookups.hot_rows(0.25)
    loaded_version.metrics.oldest(0.75)
    after = page_of(metrics)
    assert [after[f"sharded_infer_{gauge}"] for gauge in (*gauges, "queue_oldest_seconds")] == [
        0
    ] * 6
    assert after["sharded_infer_latency_objective_seconds"] == 0.06


def test_processor_time_and_memory_are_the_process_own(
    store: ServedVersions, metrics: ServerMetrics
) -> None:
    watch = ProcessSampler(store.loaded_versions, metrics)
    watch.look(monotonic())
    first = page_of(metrics)
    assert first["sharded_infer_worker_cpu_seconds_total"] > 0.0
    resident = first["sharded_infer_worker_resident_bytes"]
    assert resident == pytest.approx(resident_bytes(os.getpid()), rel=0.1)
    sum(range(3_000_000))
    watch.look(monotonic())
    grown = page_of(metrics)["sharded_infer_worker_cpu_seconds_total"]
    burnt = grown - first["sharded_infer_worker_cpu_seconds_total"]
    assert 0.0 < burnt < 60.0, "counted on, not anew"
