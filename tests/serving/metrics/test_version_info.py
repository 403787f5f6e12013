from serving.metrics.cells import MetricCells
from serving.metrics.families.model_families import NAMED_PLACES, OTHERS
from serving.metrics.version_info import FactCells, VersionInfo
from tests.support.fresh_process import run_alone


def test_names_and_ranks_are_read_from_whichever_process_wrote_them() -> None:
    cells = MetricCells(2)
    facts = FactCells(cells)
    assert facts.ranks() == facts.outputs() == ()
    cells.use(1)
    facts.write(VersionInfo(0.06, (5, 6, 7), ("click", "größe")))
    cells.use(0)
    assert facts.ranks() == ("0", "1", "2")
    assert facts.outputs() == ("click", "größe")


def test_a_page_in_another_process_has_the_labels_of_a_version_that_came_later() -> None:
    told = run_alone("""
import json, os
from prometheus_client import generate_latest
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from tests.support.answered_requests import count_answered
metrics = ServerMetrics(workers=2)
releases = metrics.follow("ranker", slots=2)
pid = os.fork()
if pid == 0:
    metrics.use(1)
    releases.assign(3, set())
    version = metrics.version("ranker", 3)
    version.describe(VersionInfo(0.033, (5, 6), ("click",)))
    count_answered(version, [(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.033, 0)])
    version.tables(table_bytes=11, huge_page_bytes=0, rank_bytes=(5, 6))
    version.queue(requests=1, samples=1)
    version.oldest(0.5)
    os._exit(0)
os.waitpid(pid, 0)
pages = [generate_latest(metrics.registry).decode()]
metrics.worker_died(1)
pages.append(generate_latest(metrics.registry).decode())
releases.assign(4, set())
releases.assign(5, {4})
pages.append(generate_latest(metrics.registry).decode())
print(json.dumps(pages))
""")
    of_3 = 'model="ranker",version="3"'
    alive, dead, replaced = told
    exact = f'sharded_infer_request_seconds_bucket{{le="0.033",{of_3}}} 1.0'
    below = f'sharded_infer_request_seconds_bucket{{le="0.025",{of_3}}} 0.0'
    # What it counted, and within which boundaries, outlives the worker; what it was doing does not.
    for page in (alive, dead):
        assert exact in page and below in page
        assert f"sharded_infer_latency_objective_seconds{{{of_3}}} 0.033" in page
        labels = 'le="0.0",model="ranker",output="click",version="3"'
        assert f"sharded_infer_scores_bucket{{{labels}}} 0.0" in page
    rank = 'sharded_infer_rank_memory_bytes{model="ranker",rank="1",version="3"}'
    oldest = f"sharded_infer_queue_oldest_seconds{{{of_3}}}"
    assert f"{rank} 6.0" in alive and f"{oldest} 0.5" in alive
    assert f"{rank} 0.0" in dead and f"{oldest} 0.0" in dead
    assert of_3 not in replaced and "0.033" not in replaced and "click" not in replaced


def test_ranks_without_a_place_of_their_own_share_the_last_and_long_names_are_cut() -> None:
    facts = FactCells(MetricCells(1))
    facts.write(VersionInfo(0.06, (1,) * 70, tuple("ab" * 50 + str(n) for n in range(20))))
    assert facts.ranks()[62:] == ("62", "63+") and len(facts.ranks()) == 64
    assert facts.outputs() == ("ab" * 32,) * 16


def test_features_without_a_place_of_their_own_are_counted_together() -> None:
    cells = MetricCells(1)
    facts = FactCells(cells)
    many = tuple(f"f{n}" for n in range(400))
    facts.write(VersionInfo(0.06, (1,), ("score",), many))
    assert facts.features() == (*many[:127], OTHERS)
    assert len(facts.features()) == len(NAMED_PLACES)
    long = tuple(f"{n:03}" + "x" * 197 for n in range(60))
    facts.write(VersionInfo(0.06, (1,), ("score",), long))
    *named, others = facts.features()
    assert others == OTHERS
    assert 10 < len(named) < 60 and tuple(named) == long[: len(named)]
