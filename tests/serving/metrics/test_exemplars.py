import struct

from prometheus_client.openmetrics import exposition, parser

from serving.metrics.cells import MetricCells
from serving.metrics.exemplars import Exemplar, Exemplars
from serving.metrics.families.family import Detail
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from tests.support.fresh_process import run_alone

FIRST, SECOND = bytes(range(16)), bytes(range(16, 32))


def test_the_latest_of_all_processes_is_shown_in_each_bucket() -> None:
    cells = MetricCells(2)
    exemplars = Exemplars(cells, 3)
    assert list(exemplars.last()) == [None, None, None]
    cells.use(0)
    exemplars.put(1, 0.25, FIRST, 100.0)
    cells.use(1)
    exemplars.put(1, 0.5, SECOND, 101.0)
    exemplars.put(2, 4.0, FIRST, 99.0)
    cells.use(0)
    exemplars.put(2, 8.0, SECOND, 98.0)
    last = [None, Exemplar(SECOND.hex(), 0.5, 101.0), Exemplar(FIRST.hex(), 4.0, 99.0)]
    assert list(exemplars.last()) == last


def test_one_that_is_being_written_is_not_shown_and_a_killed_writers_place_is_taken_over() -> None:
    cells = MetricCells(1)
    exemplars = Exemplars(cells, 1)
    cells.use(0)
    exemplars.put(0, 0.25, FIRST, 100.0)
    number = cells.own[0]
    # As a writer leaves it that was killed midway.
    cells.own[0] = number + 1
    cells.write_bytes(1, struct.pack("=d", 0.5))
    assert list(exemplars.last()) == [None]
    exemplars.put(0, 1.0, SECOND, 102.0)
    assert cells.own[0] % 2 == 0 and cells.own[0] > number + 1
    assert list(exemplars.last()) == [Exemplar(SECOND.hex(), 1.0, 102.0)]


def test_the_page_names_the_trace_beside_the_bucket_that_the_request_fell_into() -> None:
    metrics = ServerMetrics()
    version = metrics.version("ranker", 7)
    version.describe(VersionInfo(0.033, (), ("score",)))
    version.exemplar(0.033, FIRST)
    version.exemplar(0.0331, SECOND)
    version.exemplar(99.0, SECOND)
    traces = {"0.033": FIRST, "0.04": SECOND, "+Inf": SECOND}
    text = exposition.generate_latest(metrics.registry).decode()
    assert {
        sample.labels["le"]: sample.exemplar.labels
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "sharded_infer_request_seconds_bucket" and sample.exemplar
    } == {boundary: {"trace_id": trace.hex()} for boundary, trace in traces.items()}


def test_nothing_is_kept_where_histograms_are_not() -> None:
    metrics = ServerMetrics(detail=Detail.OFF)
    version = metrics.version("ranker", 7)
    version.exemplar(0.5, FIRST)
    assert not any(version.exemplars.last())


def test_a_reader_beside_a_writer_never_sees_one_in_part() -> None:
    halves = run_alone("""
import json, os, signal
from serving.metrics.exemplars import Exemplars
from serving.metrics.cells import MetricCells
cells = MetricCells(1)
exemplars = Exemplars(cells, 1)
pid = os.fork()
if pid == 0:
    cells.use(0)
    number = 0
    while True:
        number = (number + 1) % 200
        exemplars.put(0, float(number), bytes([number]) * 16, float(number))
seen, torn = set(), 0
while len(seen) < 50:
    for one in exemplars.last():
        if one is not None:
            seen.add(one.seconds)
            whole = one.trace_id == f"{int(one.seconds):02x}" * 16 and one.timestamp == one.seconds
            torn += not whole
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print(json.dumps(torn))
""")
    assert halves == 0
