"""Which scheduler a process gets."""

import pytest

from serving.scheduler import scheduler
from serving.scheduler.batcher import Batcher
from serving.scheduler.compiled_batcher import CompiledBatcher
from serving.scheduler.compiled_queue import CompiledQueue
from serving.scheduler.request_queue import BatchingPolicy, QueuedRequest, RequestQueue


def _runs_a_request() -> None:
    batcher, queue = (
        scheduler.new_scheduler(slots=1),
        scheduler.new_queue(BatchingPolicy(), {1: 0.5}),
    )
    batcher.add_queue(queue)
    request = QueuedRequest(queue, samples=1, arrived=0.0)
    batcher.offer(request, 0.0)
    assert (len(queue), queue.samples, queue.oldest_arrival()) == (1, 1, 0.0)
    batch = batcher.take(0.0).batch
    assert batch is not None and batch.requests == (request,) and batch.predicted == 0.5


def test_it_is_compiled_where_a_compiler_built_it() -> None:
    assert isinstance(scheduler.new_scheduler(slots=1), CompiledBatcher)
    assert isinstance(scheduler.new_queue(BatchingPolicy(), {1: 0.5}), CompiledQueue)
    _runs_a_request()


def test_it_is_the_reference_where_none_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LIBRARY", None)
    assert isinstance(scheduler.new_scheduler(slots=1), Batcher)
    assert isinstance(scheduler.new_queue(BatchingPolicy(), {1: 0.5}), RequestQueue)
    _runs_a_request()
