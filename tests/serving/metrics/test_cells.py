import mmap

import pytest

from serving.metrics.cells import MetricCells
from sharded_infer.errors import InternalError
from tests.support.fresh_process import run_alone


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


def test_a_full_row_is_refused_and_stays_as_it_was() -> None:
    cells = MetricCells(1, worker_bytes=1)
    capacity = mmap.PAGESIZE // 8
    assert cells.allocate(capacity - 1) == 0
    with pytest.raises(InternalError, match=rf"2 more do not fit beside {capacity - 1} of"):
        cells.allocate(2)
    assert cells.allocate(1) == capacity - 1
    cells.own[capacity - 1] += 1.0
    assert cells.values(capacity - 1) == [0.0], "the last cell of a row is not the next row's"


def test_a_worker_that_is_none_is_refused() -> None:
    with pytest.raises(InternalError, match="no worker 2 of 2"):
        MetricCells(2).use(2)


def test_clearing_sets_only_the_named_cells_of_that_worker_to_zero() -> None:
    cells = MetricCells(2)
    cells.allocate(3)
    for worker in (0, 1):
        cells.use(worker)
        for cell in range(3):
            cells.own[cell] = 7.0
    cells.clear_worker(0, [0, 2])
    assert cells.rows()[:2] == [[0.0, 7.0, 0.0], [7.0, 7.0, 7.0]]


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
