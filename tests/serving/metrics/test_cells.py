import mmap
import threading

import pytest

from serving.metrics.cells import MetricCells
from sharded_infer.errors import InternalError
from tests.support.fresh_process import run_alone

ADDITIONS = 20_000


def test_new_cells_are_zero_and_numbered_one_after_another() -> None:
    cells = MetricCells(2)
    assert [cells.allocate(3), cells.allocate(1), cells.allocate(2)] == [0, 3, 4]
    assert cells.values(5) == [0.0, 0.0] and cells.total(5) == 0.0
    assert cells.rows() == [[0.0] * 6] * 3


def test_the_parents_row_counts_in_totals_but_is_no_workers() -> None:
    cells = MetricCells(2)
    cell = cells.allocate(1)
    cells.own[cell] += 1.5
    cells.use(1)
    cells.own[cell] += 4.0
    assert cells.values(cell) == [0.0, 4.0]
    assert cells.total(cell) == 5.5 and cells.largest(cell) == 4.0
    assert cells.rows() == [[0.0], [4.0], [1.5]]


def test_whole_numbers_become_floats() -> None:
    cells = MetricCells(1)
    cell = cells.allocate(1)
    cells.own[cell] = 3
    cells.own[cell] += 2**52
    assert cells.total(cell) == 2.0**52 + 3


def test_a_full_row_is_refused_and_stays_as_it_was() -> None:
    cells = MetricCells(1, worker_bytes=1)
    capacity = mmap.PAGESIZE // 8
    assert cells.allocate(capacity - 1) == 0
    with pytest.raises(InternalError, match=rf"2 more do not fit beside {capacity - 1} of"):
        cells.allocate(2)
    assert cells.allocate(1) == capacity - 1
    cells.own[capacity - 1] += 1.0
    assert cells.values(capacity - 1) == [0.0], "the last cell of a row is not the next row's"


@pytest.mark.parametrize("worker", [-1, 2])
def test_a_worker_that_is_none_is_refused(worker: int) -> None:
    cells = MetricCells(2)
    with pytest.raises(InternalError, match=f"no worker {worker} of 2"):
        cells.use(worker)
    with pytest.raises(InternalError, match=f"no worker {worker} of 2"):
        cells.clear_worker(worker, [0])


def test_clearing_sets_only_the_named_cells_of_that_worker_to_zero() -> None:
    cells = MetricCells(2)
    cells.allocate(3)
    for worker in (0, 1):
        cells.use(worker)
        for cell in range(3):
            cells.own[cell] = 7.0
    cells.clear_worker(0, [0, 2])
    assert cells.rows()[:2] == [[0.0, 7.0, 0.0], [7.0, 7.0, 7.0]]


def test_threads_that_add_at_once_lose_nothing() -> None:
    cells = MetricCells(1)
    cell = cells.allocate(1)
    cells.use(0)
    start = threading.Barrier(8)

    def add() -> None:
        start.wait()
        for _ in range(ADDITIONS):
            with cells.lock:
                cells.own[cell] += 1.0

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cells.total(cell) == 8 * ADDITIONS


def test_forked_workers_add_to_one_sum_and_a_killed_ones_successor_counts_on() -> None:
    script = f"""
import json, os, signal
from serving.metrics.cells import MetricCells

cells = MetricCells(4)
count, gauge = cells.allocate(1), cells.allocate(1)

def fork(worker, forever=False):
    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        assert os.read(ready, 1) == b"x"
        return pid
    cells.use(worker)
    cells.own[gauge] = 1.0
    for _ in range({ADDITIONS}):
        with cells.lock:
            cells.own[count] += 1.0
    os.write(told, b"x")
    signal.pause()

def kill(pid):
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL

pids = [fork(worker) for worker in range(4)]
said = [(cells.values(count), cells.values(gauge))]
kill(pids[2])
said.append((cells.values(count), cells.values(gauge)))
cells.clear_worker(2, [gauge])
said.append((cells.values(count), cells.values(gauge)))
pids[2] = fork(2)
said.append((cells.values(count), cells.values(gauge)))
total = cells.total(count)
for pid in pids:
    kill(pid)
print(json.dumps([said, total]))
"""
    said, total = run_alone(script)
    assert said == [
        [[ADDITIONS] * 4, [1, 1, 1, 1]],
        [[ADDITIONS] * 4, [1, 1, 1, 1]],
        [[ADDITIONS] * 4, [1, 1, 0, 1]],
        [[ADDITIONS, ADDITIONS, 2 * ADDITIONS, ADDITIONS], [1, 1, 1, 1]],
    ]
    assert total == 5 * ADDITIONS


def test_workers_that_add_at_the_same_time_lose_nothing() -> None:
    script = f"""
import json, os
from serving.metrics.cells import MetricCells

cells = MetricCells(4)
cell = cells.allocate(1)
pids = []
for worker in range(4):
    pid = os.fork()
    if pid == 0:
        cells.use(worker)
        for _ in range({ADDITIONS}):
            cells.own[cell] += 1.0
        os._exit(0)
    pids.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
print(json.dumps([cells.values(cell), cells.total(cell)]))
"""
    assert run_alone(script) == [[ADDITIONS] * 4, 4 * ADDITIONS]


def test_a_forked_process_cannot_allocate() -> None:
    script = """
import json, os
from serving.metrics.cells import MetricCells
from sharded_infer.errors import InternalError

cells = MetricCells(1)
pid = os.fork()
if pid == 0:
    cells.use(0)
    try:
        cells.allocate(1)
    except InternalError as error:
        os._exit(7 if "only by the process that made them" in str(error) else 1)
    os._exit(0)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), cells.allocate(1)]))
"""
    assert run_alone(script) == [7, 0]


def test_a_worker_forked_while_the_lock_was_held_is_not_stuck() -> None:
    script = """
import json, os, signal
from serving.metrics.cells import MetricCells

cells = MetricCells(1)
cell = cells.allocate(1)
cells.lock.acquire()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    cells.use(0)
    with cells.lock:
        cells.own[cell] += 1.0
    os._exit(0)
print(json.dumps([os.waitpid(pid, 0)[1], cells.total(cell)]))
"""
    assert run_alone(script) == [0, 1]
