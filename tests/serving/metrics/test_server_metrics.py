"""The metrics page and statistics: as prometheus_client counts, over processes, and their cost."""

import threading

import numpy as np
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.metrics.families.all_families import VERSION_FAMILIES
from serving.metrics.families.model_families import MODEL_FAMILIES
from serving.metrics.families.request_families import (
    BATCH_SAMPLES_BOUNDARIES,
    BLAMED,
    CODES,
    PHASES,
    REFUSALS,
)
from serving.metrics.families.server_families import (
    GRPC_DROPS,
    HTTP_DROPS,
    PAGE_FAMILIES,
    RECORD_OUTCOMES,
    SERVER_FAMILIES,
    WORKER_CPU_SECONDS,
    WORKER_HUGE_PAGE_BYTES,
    WORKER_RESIDENT_BYTES,
    WORKER_RESTARTS,
)
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.totals import Duration
from serving.metrics.version_info import VersionInfo
from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.lookups.lookup_work import LookupWork
from tests.support.answered_requests import Answered, count_answered
from tests.support.fresh_process import run_alone

LABELS = {"model": "ranker", "version": "7"}
# Sums of powers of two are exact in any order.
FACTS = VersionInfo(0.033, (10, 20), ("score", "labels"))
INPUT = ModelInput(2, (JaggedBatch((0,), np.arange(4), np.array([[1, 3]])),), ())
REQUEST: Answered = (10, 0.25, 0.125, 0.5, 1.0, 0.0625, 2.0, 3)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


# What a page says of the machine, whatever was counted.
MACHINE = {family.name for family in PAGE_FAMILIES}


def samples(registry: CollectorRegistry) -> Samples:
    """A page by name and sorted labels, without the machine's metrics."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name not in MACHINE
    }


def value(page: Samples, name: str, **labels: str) -> float:
    return page[f"sharded_infer_{name}", tuple(sorted((LABELS | labels).items()))]


def busy_metrics() -> ServerMetrics:
    metrics = ServerMetrics()
    version = metrics.version("ranker", 7)
    version.describe(FACTS)
    metrics.version("ranker", 7).loaded(True)
    version.tables(table_bytes=64, huge_page_bytes=32, rank_bytes=FACTS.rank_bytes)
    metrics.serving(True, slots=2)
    metrics.add(WORKER_CPU_SECONDS, 1.5)
    metrics.set(WORKER_RESIDENT_BYTES, 4096)
    metrics.set(WORKER_HUGE_PAGE_BYTES, 2048)
    count_answered(version, [REQUEST] * 3)
    version.ran_batch(requests=3, samples=30, seconds=1.5, predicted=1.25)
    for code in CODES:
        version.failed(code, 0.5)
        metrics.unknown_failed(code)
    for reason in REFUSALS:
        version.refused(reason)
    for phase in BLAMED:
        version.slow(phase)
    version.exemplar(2.0, bytes(range(16)))
    assert version.lookups is not None
    scores = (np.array([0.25, -4.0, np.nan], np.float32), np.array([[0.5, 200.0]], np.float32))
    version.lookups.looked_up(LookupWork([(0, 30, 480, 0.5), (1, 10, 80, 0.25)], 7), INPUT, scores)
    version.lookups.hot_rows(0.5)
    version.queue(requests=2, samples=9)
    version.oldest(0.75)
    metrics.in_flight(1)
    metrics.add(WORKER_RESTARTS)
    return metrics


def test_every_family_is_on_the_page_before_anything_is_counted() -> None:
    metrics = ServerMetrics()
    families = list(metrics.registry.collect())
    declared = [*VERSION_FAMILIES, *MODEL_FAMILIES, *SERVER_FAMILIES, *PAGE_FAMILIES]
    assert [f.name for f in families] == [f.name for f in declared]
    assert all(f.documentation.endswith(".") for f in families)
    assert not any(f.samples for f in families if f.name in {d.name for d in VERSION_FAMILIES})
    page = samples(metrics.registry)
    single = ("requests_in_flight", "minor_page_faults_total", "traces_dropped_total", "workers")
    of_worker = ("requests_total", "cpu_seconds_total", "resident_bytes", "huge_page_bytes")
    assert page == {
        **{(f"sharded_infer_{n}", ()): 0 for n in (*single, "slots", "worker_restarts_total")},
        **{
            ("sharded_infer_recorded_requests_total", (("outcome", o),)): 0 for o in RECORD_OUTCOMES
        },
        **{("sharded_infer_http_dropped_total", (("reason", r),)): 0 for r in HTTP_DROPS},
        **{("sharded_infer_grpc_dropped_total", (("reason", r),)): 0 for r in GRPC_DROPS},
        **{(f"sharded_infer_worker_{n}", (("worker", "0"),)): 0 for n in of_worker},
    }


def test_a_new_version_shows_zeros_and_of_all_codes_only_ok() -> None:
    metrics = ServerMetrics()
    metrics.version("ranker", 7)
    page = samples(metrics.registry)
    assert set(page.values()) == {0.0}
    codes = [
        dict(labels)["code"] for name, labels in page if name == "sharded_infer_requests_total"
    ]
    assert codes == ["OK"]
    reasons = {dict(labels).get("reason") for _, labels in page} - {None}
    assert reasons == {*REFUSALS, *HTTP_DROPS, *GRPC_DROPS}


def test_every_count_is_where_it_belongs() -> None:
    page = samples(busy_metrics().registry)
    assert value(page, "requests_total", code="OK") == 4
    assert all(value(page, "requests_total", code=c) == 1 for c in CODES if c != "OK")
    for code in CODES:
        unknown = (("code", code), ("model", "unknown"), ("version", ""))
        assert page["sharded_infer_requests_total", unknown] == 1
    assert value(page, "samples_total") == 30
    assert value(page, "ids_out_of_range_total") == 9
    for phase, seconds in zip(PHASES, (0.25, 0.5, 1.0, 0.0625), strict=True):
        assert value(page, "phase_seconds_sum", phase=phase) == 3 * seconds
        assert value(page, "phase_seconds_count", phase=phase) == 3
    assert value(page, "queue_seconds_sum") == 0.375
    assert value(page, "queue_seconds_bucket", le="0.1") == 0
    assert value(page, "queue_seconds_bucket", le="0.15") == 3
    assert value(page, "request_seconds_sum") == 6
    assert value(page, "request_seconds_bucket", le="1.0") == 0
    assert value(page, "request_seconds_bucket", le="+Inf") == 3
    assert value(page, "batch_requests_sum") == 3 and value(page, "batch_samples_sum") == 30
    assert value(page, "batch_requests_bucket", le="2.0") == 0
    assert value(page, "batch_requests_bucket", le="4.0") == 1
    assert value(page, "batch_samples_bucket", le="16.0") == 0
    assert value(page, "batch_samples_bucket", le="32.0") == 1
    assert value(page, "busy_seconds_total") == 1.5
    assert value(page, "cost_predicted_seconds_total") == 1.25
    assert all(value(page, "requests_refused_total", reason=r) == 1 for r in REFUSALS)
    assert value(page, "queue_requests") == 2 and value(page, "queue_samples") == 9
    assert value(page, "model_loaded") == 1
    assert page["sharded_infer_requests_in_flight", ()] == 1
    assert page["sharded_infer_workers", ()] == 1
    assert page["sharded_infer_worker_restarts_total", ()] == 1
    assert value(page, "latency_objective_seconds") == 0.033
    assert value(page, "request_seconds_bucket", le="0.033") == 0
    assert all(value(page, "slow_requests_total", phase=p) == 1 for p in BLAMED)
    assert value(page, "queue_oldest_seconds") == 0.75
    assert value(page, "cost_ratio_bucket", le="1.1") == 0
    assert value(page, "cost_ratio_bucket", le="1.25") == 1 and value(page, "cost_ratio_sum") == 1.2
    for rank, rows, row_bytes, seconds, held in (("0", 30, 480, 0.5, 10), ("1", 10, 80, 0.25, 20)):
        assert value(page, "rank_rows_total", rank=rank) == rows
        assert value(page, "rank_row_bytes_total", rank=rank) == row_bytes
        assert value(page, "rank_busy_seconds_total", rank=rank) == seconds
        assert value(page, "rank_memory_bytes", rank=rank) == held
    assert value(page, "broadcast_rows_saved_total") == 7
    assert value(page, "hot_row_share") == 0.5
    counts = [value(page, "scores_bucket", output="score", le=le) for le in ("-5.0", "-3.0", "0.3")]
    assert counts == [0, 1, 2] and value(page, "scores_bucket", output="score", le="+Inf") == 3
    assert value(page, "scores_bucket", output="labels", le="100.0") == 1
    assert value(page, "scores_bucket", output="labels", le="+Inf") == 2
    assert page["sharded_infer_slots", ()] == 2
    worker = (("worker", "0"),)
    assert page["sharded_infer_worker_cpu_seconds_total", worker] == 1.5
    assert page["sharded_infer_worker_resident_bytes", worker] == 4096
    assert page["sharded_infer_worker_huge_page_bytes", worker] == 2048
    answered = 3 + 2 * len(CODES)
    assert page["sharded_infer_worker_requests_total", (("worker", "0"),)] == answered


def test_batches_are_counted_as_prometheus_client_does() -> None:
    registry = CollectorRegistry()
    labels = tuple(LABELS)
    batch = prometheus_client.Histogram(
        "sharded_infer_batch_samples",
        "b",
        labels,
        registry=registry,
        buckets=BATCH_SAMPLES_BOUNDARIES,
    ).labels(**LABELS)
    busy = prometheus_client.Counter("sharded_infer_busy_seconds", "s", labels, registry=registry)
    metrics = ServerMetrics()
    version = metrics.version("ranker", 7)
    generator = np.random.default_rng(3)
    for count in (1, 2, 3, 4, 5, 65535, 65536, 65537, *generator.integers(1, 99_999, 100)):
        version.ran_batch(requests=1, samples=int(count), seconds=0.5, predicted=0.5)
        batch.observe(count)
        busy.labels(**LABELS).inc(0.5)
    expected = {k: v for k, v in samples(registry).items() if not k[0].endswith("_created")}
    page = samples(metrics.registry)
    assert {key: page[key] for key in expected} == expected
    assert not any(name.endswith("_created") for name, _ in page)


def test_a_versions_metrics_are_the_same_each_time_and_versions_do_not_mix() -> None:
    metrics = ServerMetrics()
    first, second = metrics.version("ranker", 7), metrics.version("ranker", 8)
    other = metrics.version("other", 7)
    assert metrics.version("ranker", 7) is first
    count_answered(first, [REQUEST])
    count_answered(second, [REQUEST] * 2)
    other.failed("INTERNAL", 1.0)
    requests = {
        (labels["model"], labels["version"], labels["code"]): count
        for labels, count in (
            (dict(key[1]), count)
            for key, count in samples(metrics.registry).items()
            if key[0] == "sharded_infer_requests_total"
        )
    }
    assert requests == {
        ("ranker", "7", "OK"): 1,
        ("ranker", "8", "OK"): 2,
        ("other", "7", "OK"): 0,
        ("other", "7", "INTERNAL"): 1,
    }
    assert [v.totals().requests for v in (first, second, other)] == [1, 2, 0]
    for loaded in (True, False):
        metrics.version("ranker", 7).loaded(loaded)
        assert value(samples(metrics.registry), "model_loaded") == loaded


def test_hundreds_of_versions_fit_and_too_many_are_refused() -> None:
    metrics = ServerMetrics()
    for version in range(500):
        count_answered(metrics.version("ranker", version), [REQUEST])
    more = (metrics.version("ranker", version) for version in range(500, 1000))
    with pytest.raises(InternalError, match="do not fit"):
        list(more)
    assert metrics.version("ranker", 499).totals().requests == 1


def test_statistics_agree_with_the_page() -> None:
    metrics = busy_metrics()
    version = metrics.version("ranker", 7)
    totals, page = version.totals(), samples(metrics.registry)
    # `failed("OK")` counts no seconds of an answer: here 4 of 3.
    assert totals.requests == value(page, "requests_total", code="OK")
    assert totals.samples == value(page, "samples_total")
    assert totals.executions == value(page, "batch_requests_count") == 1
    assert totals.queue.nanoseconds == value(page, "queue_seconds_sum") * 1e9
    assert totals.success.nanoseconds == value(page, "request_seconds_sum") * 1e9
    assert totals.failure == Duration(16, 8_500_000_000)
    # The parts of a request add up to the whole.
    version = ServerMetrics().version("ranker", 7)
    assert version.totals().last_request_ms == 0
    count_answered(version, [REQUEST] * 3)
    totals = version.totals()
    parts = (totals.queue, totals.decode, totals.infer, totals.encode)
    assert {part.count for part in (*parts, totals.success)} == {3}
    assert sum(part.nanoseconds for part in parts) == totals.success.nanoseconds == 6 * 10**9
    assert totals.last_request_ms > 1.6e12


def test_threads_that_count_at_once_lose_nothing() -> None:
    metrics = ServerMetrics()
    version = metrics.version("ranker", 7)
    start = threading.Barrier(8)
    many = [REQUEST] * 4

    def count() -> None:
        start.wait()
        for _ in range(500):
            metrics.in_flight(1)
            count_answered(version, many)
            version.ran_batch(requests=4, samples=40, seconds=0.5, predicted=0.25)
            version.failed("INTERNAL", 0.5)
            metrics.in_flight(-1)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    page = samples(metrics.registry)
    assert value(page, "requests_total", code="OK") == 16_000
    assert value(page, "requests_total", code="INTERNAL") == 4000
    assert value(page, "request_seconds_count") == 16_000
    assert value(page, "request_seconds_sum") == 32_000
    assert value(page, "batch_requests_sum") == 16_000
    assert value(page, "busy_seconds_total") == 2000
    assert page["sharded_infer_requests_in_flight", ()] == 0


WORKERS = """
import json, os, signal, time
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from serving.metrics.families.server_families import WORKER_RESTARTS
from serving.metrics.server_metrics import ServerMetrics
from tests.support.answered_requests import count_answered

REQUEST = (10, 0.25, 0.125, 0.5, 1.0, 0.0625, 2.0, 3)
metrics = ServerMetrics(workers=3)
version = metrics.version("ranker", 7)

def fork(worker, requests):
    "A worker that has counted its requests, or counts them without end."
    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        assert os.read(ready, 1) == b"x"
        return pid
    metrics.use(worker)
    metrics.serving(True)
    metrics.version("ranker", 7).loaded(True)
    metrics.in_flight(1)
    version.queue(requests=2, samples=9)
    if requests is None:
        os.write(told, b"x")
    while requests is None:
        count_answered(version, [REQUEST])
    for _ in range(requests):
        count_answered(version, [REQUEST])
        version.ran_batch(requests=1, samples=10, seconds=0.5, predicted=0.25)
    os.write(told, b"x")
    signal.pause()

def kill(pid):
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL

def page():
    return {
        " ".join([s.name.removeprefix("sharded_infer_"), *(v for _, v in sorted(s.labels.items()))]): s.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for s in family.samples
    }
"""  # noqa: E501


def test_workers_share_a_page_and_a_killed_ones_successor_counts_on() -> None:
    script = f"""{WORKERS}
pids = [fork(worker, 1000 * (worker + 1)) for worker in range(3)]
pages = [page()]
kill(pids[1])
metrics.worker_died(1)
pages.append(page())
pids[1] = fork(1, 500)
metrics.add(WORKER_RESTARTS)
pages.append(page())
totals = version.totals()
for pid in pids:
    kill(pid)
print(json.dumps([pages, [totals.requests, totals.samples, totals.executions]]))
"""
    (before, between, after), totals = run_alone(script)
    for page, requests, alive in ((before, 6000, 3), (between, 6000, 2), (after, 6500, 3)):
        assert page["requests_total OK ranker 7"] == requests
        assert page["request_seconds_count ranker 7"] == requests
        assert page["request_seconds_bucket +Inf ranker 7"] == requests
        assert page["request_seconds_sum ranker 7"] == 2 * requests
        assert page["batch_requests_count ranker 7"] == requests
        assert page["busy_seconds_total ranker 7"] == requests / 2
        assert page["samples_total ranker 7"] == 10 * requests
        # What a dead worker was doing is over.
        assert page["workers"] == page["requests_in_flight"] == alive
        assert page["queue_requests ranker 7"] == 2 * alive
        assert page["queue_samples ranker 7"] == 9 * alive
        assert page["model_loaded ranker 7"] == 1, "one version, however many workers"
    assert [before["worker_restarts_total"], after["worker_restarts_total"]] == [0, 1]
    assert [after[f"worker_requests_total {w}"] for w in range(3)] == [1000, 2500, 3000]
    assert totals == [6500, 65_000, 6500]


def test_a_worker_killed_while_it_counts_leaves_at_most_one_request_in_part() -> None:
    script = f"""{WORKERS}
def until_it_counts():
    "Some moment later it is in the middle of a request."
    before = version.totals().requests
    while version.totals().requests == before:
        pass

pages = []
for _ in range(10):
    pid = fork(0, None)
    until_it_counts()
    kill(pid)
    metrics.worker_died(0)
    pages.append(page())
pid = fork(0, 100)
pages.append(page())
kill(pid)
print(json.dumps(pages))
"""
    *pages, last = run_alone(script)
    for killed, page in enumerate(pages, start=1):
        requests = page["requests_total OK ranker 7"]
        assert requests > 0
        counts = [page["request_seconds_count ranker 7"], page["request_seconds_sum ranker 7"] / 2]
        assert all(requests - killed <= count <= requests for count in counts)
        assert page["requests_in_flight"] == page["workers"] == 0
    for name in ("requests_total OK", "request_seconds_count", "batch_requests_count"):
        before = pages[-1][f"{name} ranker 7"]
        assert last[f"{name} ranker 7"] == before + 100, "its successor's are all there"


def test_a_version_named_in_the_parent_is_every_workers_and_a_workers_own_is_refused() -> None:
    script = f"""{WORKERS}
from sharded_infer.errors import InternalError
metrics.version("ranker", 7).loaded(True)
pid = os.fork()
if pid == 0:
    metrics.use(0)
    assert metrics.version("ranker", 7) is version
    try:
        metrics.version("ranker", 8)
    except InternalError:
        os._exit(7)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
metrics.worker_died(0)
print(json.dumps([code, page()["model_loaded ranker 7"]]))
"""
    assert run_alone(script) == [7, 1]
