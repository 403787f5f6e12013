"""Requests on real threads: each gets its own answer, in time, and none waits for ever."""

import math
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest
from serving.scheduler.batcher import Batch, Batcher

from serving.errors import CancelledError, DeadlineError
from serving.scheduler.batch_threads import BatchThreads
from serving.scheduler.batching import (
    LOWEST_PRIORITY,
    BatchingMode,
    BatchingPolicy,
    QueuedRequest,
    RequestState,
)
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.version_queue import VersionQueue
from tests.support.waiting import until

# Nothing in a test that passes takes so long.
HANG_SECONDS = 20.0
SLOTS = pytest.mark.parametrize("slots", [1, 2])
AUTO = BatchingPolicy()
INLINE = BatchingPolicy(BatchingMode.INLINE)
# Seconds of a batch by samples: merging saves time, so that batches wait for more.
COSTS = {1: 1e-3, 1024: 1.1e-3}


class TaskError(Exception):
    """The failure that a task asks for."""


class TaskRequest(QueuedRequest):
    """A task, whose result may be an exception (`fails`) or whose batch raises (`breaks`).

    `answers` counts how often `on_done` was called.
    """

    __slots__ = ("answers", "breaks", "ended", "fails", "gate", "seconds", "tag")

    def __init__(
        self,
        queue: VersionQueue,
        tag: int,
        *,
        fails: bool = False,
        breaks: bool = False,
        seconds: float = 0.0,
        gate: threading.Event | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(queue, on_done=self._count, **fields)
        self.tag, self.fails, self.breaks, self.seconds = tag, fails, breaks, seconds
        self.gate = gate
        self.answers = 0
        self.ended = threading.Event()

    def _count(self, _request: QueuedRequest) -> None:
        self.answers += 1
        self.ended.set()
        if self.breaks:
            raise TaskError("the client's connection")

    def check_answer(self) -> None:
        assert self.ended.wait(HANG_SECONDS), f"no answer: {self.tag}"
        assert self.answers == 1
        if self.fails:
            assert isinstance(self.error, TaskError) and self.error.args == (self.tag,)
        else:
            assert (self.error, self.result) == (None, ("answer", self.tag))


@dataclass(slots=True)
class Recorder:
    batches: list[list[int]] = field(default_factory=list)
    most: int = 0
    dropped: list[tuple[int, RequestState]] = field(default_factory=list)
    observed: list[Batch] = field(default_factory=list)
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def execute(self, tasks: Sequence[TaskRequest]) -> Sequence[Any]:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
            self.batches.append([task.tag for task in tasks])
        try:
            sleep(max(task.seconds for task in tasks))
            for task in tasks:
                if task.gate is not None:
                    assert task.gate.wait(HANG_SECONDS)
                if task.breaks:
                    raise TaskError(f"batch of {task.tag}")
            return [TaskError(task.tag) if task.fails else ("answer", task.tag) for task in tasks]
        finally:
            with self._lock:
                self._running -= 1

    def observe(self, batch: Batch, seconds: float) -> None:
        assert seconds >= 0
        self.observed.append(batch)

    def drop(self, request: TaskRequest) -> None:
        self.dropped.append((request.tag, request.state))

    @property
    def tags(self) -> list[int]:
        return [tag for batch in self.batches for tag in batch]


class Process:
    """A dispatcher with a queue for each policy; `running` gives it threads."""

    def __init__(
        self, *policies: BatchingPolicy, slots: int = 1, costs: dict[int, float] | None = None
    ) -> None:
        self.recorder = Recorder()
        self.batcher: Batcher[TaskRequest] = Batcher(slots=slots)
        self.dispatcher = Dispatcher(
            self.batcher,
            self.recorder.execute,
            observe=self.recorder.observe,
            on_waiting=lambda _: None,
            on_dropped=self.recorder.drop,
        )
        self.queues = [VersionQueue(policy, costs or COSTS) for policy in policies]
        for queue in self.queues:
            self.dispatcher.add_queue(queue)

    def request(
        self,
        tag: int,
        *,
        samples: int = 1,
        seconds_left: float = math.inf,
        age: float = 0.0,
        queue: int = 0,
        **task: Any,
    ) -> TaskRequest:
        now = monotonic()
        task |= {"arrived": now - age, "deadline": now + seconds_left}
        return TaskRequest(self.queues[queue], tag, samples=samples, **task)

    def offer(self, *requests: TaskRequest) -> None:
        for request in requests:
            self.dispatcher.offer(request)

    @contextmanager
    def running(self) -> Iterator[BatchThreads]:
        threads = BatchThreads(self.dispatcher)
        threads.start(lambda: None)
        try:
            yield threads
        finally:
            threads.stop()

    @contextmanager
    def occupied(self, *, queue: int = 0) -> Iterator[None]:
        """A batch with tag -1 takes a slot until the block ends."""
        gate = threading.Event()
        self.offer(self.request(-1, gate=gate, queue=queue))
        thread = threading.Thread(target=self.dispatcher.work)
        thread.start()
        try:
            until(lambda: -1 in self.recorder.tags, "the slot is taken")
            yield
        finally:
            gate.set()
            thread.join(HANG_SECONDS)
        assert not thread.is_alive()

    def work_off(self) -> None:
        while self.dispatcher.work():
            pass

    def check_idle(self) -> None:
        assert self.dispatcher.waiting == (0, 0)
        assert self.dispatcher.due() == math.inf
        assert self.dispatcher.running_since == math.inf


def random_request(process: Process, tag: int, generator: random.Random) -> TaskRequest:
    is_pressing = generator.random() < 0.2
    return process.request(
        tag,
        samples=generator.choice([1, 1, 2, 7, 30, 100]),
        queue=generator.random() < 0.2,
        age=generator.choice([0.0, generator.uniform(0.0, 0.0006)]),
        seconds_left=generator.uniform(0.0005, 0.02) if is_pressing else math.inf,
        fails=generator.random() < 0.1,
        seconds=generator.choice([0.0, 0.0, 0.0, 0.0003, 0.002]),
    )


@SLOTS
@pytest.mark.parametrize("mode", list(BatchingMode))
def test_every_request_is_answered_once_and_no_wake_up_is_lost(
    mode: BatchingMode, slots: int
) -> None:
    # Deadlines pass, clients go away, batches fill and fail; a lost wake-up leaves a request.
    process = Process(BatchingPolicy(mode, 64, 0.0005), AUTO, slots=slots)
    offered: list[TaskRequest] = []
    tags = count()

    def offer(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(150):
            request = random_request(process, next(tags), generator)
            with suppress(DeadlineError):
                process.offer(request)
                offered.append(request)
                threads.wake()
            if generator.random() < 0.1:
                process.dispatcher.cancel(request)
            if generator.random() < 0.2:
                sleep(generator.choice([0.0001, 0.001, 0.003]))

    with process.running() as threads:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(offer, range(8)))
        assert next(tags) == 8 * 150
        for request in offered:
            assert request.ended.wait(HANG_SECONDS), f"no answer: {request.tag}"
    ran = process.recorder.tags
    assert len(ran) == len(set(ran)), "a request ran twice"
    for request in offered:
        if request.tag in ran:
            request.check_answer()
        else:
            assert request.answers == 1
            assert isinstance(request.error, (DeadlineError, CancelledError))
    assert len(process.recorder.dropped) == len(offered) - len(ran)
    assert len(process.recorder.observed) == len(process.recorder.batches)
    assert len(ran) > 300 and 1 <= process.recorder.most <= slots
    process.check_idle()


def test_a_batch_that_is_ready_takes_every_slot_that_is_free() -> None:
    process = Process(INLINE, slots=2)
    both = threading.Barrier(2, timeout=HANG_SECONDS)
    execute = process.recorder.execute

    def meet(requests: Sequence[TaskRequest]) -> Sequence[Any]:
        both.wait()  # the two end only if they run side by side
        return execute(requests)

    process.dispatcher._execute = meet
    with process.running() as threads:
        for turn in range(50):
            pair = [process.request(2 * turn), process.request(2 * turn + 1)]
            process.offer(*pair)
            threads.wake()
            for request in pair:
                request.check_answer()


def test_an_exception_is_its_requests_alone_and_of_a_batch_that_raises_all_requests() -> None:
    process = Process(AUTO)
    requests = [process.request(tag, fails=tag == 2) for tag in range(5)]
    process.offer(*requests)
    process.work_off()
    assert process.recorder.batches == [[0, 1, 2, 3, 4]]
    for request in requests:
        request.check_answer()
    # `on_done` of the third raises too, and does not keep the others from their answers.
    requests = [process.request(tag, breaks=tag == 2) for tag in range(5)]
    process.offer(*requests)
    process.work_off()
    for request in requests:
        assert request.answers == 1 and request.result is None
        assert isinstance(request.error, TaskError) and request.error.args == ("batch of 2",)
    after = process.request(10)
    process.offer(after)
    process.work_off()
    after.check_answer()
    process.check_idle()


def batched(max_delay: float) -> BatchingPolicy:
    return BatchingPolicy(BatchingMode.BATCHED, 8, max_delay)


def test_the_rest_of_a_full_batch_runs_after_the_delay() -> None:
    process = Process(batched(1.0), INLINE)
    requests = [process.request(tag) for tag in range(11)]
    with process.running() as threads:
        with process.occupied(queue=1):
            process.offer(*requests)
            threads.wake()
        for request in requests:
            request.check_answer()
    assert [len(batch) for batch in process.recorder.batches] == [1, 8, 3]


def idle_request(process: Process) -> TaskRequest:
    """Stands for a task; its queue is known to the batcher only while it waits."""
    queue = VersionQueue(INLINE, COSTS)
    process.dispatcher.add_queue(queue)
    process.dispatcher.remove_queue(queue)
    return TaskRequest(queue, -1, samples=1, arrived=monotonic(), priority=LOWEST_PRIORITY)


@SLOTS
def test_a_task_holds_an_idle_slot_while_it_runs_and_frees_it_if_it_fails(slots: int) -> None:
    process = Process(AUTO, slots=slots)
    with pytest.raises(ZeroDivisionError):
        process.dispatcher.run_idle(idle_request(process), lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    process.check_idle()
    beside = process.request(1)
    ran: list[bool] = []

    def offer_meanwhile() -> None:
        assert process.dispatcher.running_since <= monotonic()
        process.offer(beside)
        thread = threading.Thread(target=lambda: ran.append(process.dispatcher.work()))
        thread.start()
        thread.join(HANG_SECONDS)

    assert process.dispatcher.run_idle(idle_request(process), offer_meanwhile)
    assert ran == [slots == 2], "with one slot, the request waits for the task"
    # The thread of the task has run it before it returned.
    beside.check_answer()
    assert process.recorder.tags == [1] and process.recorder.dropped == []
    process.check_idle()


def test_no_task_runs_while_slots_are_taken_or_requests_wait() -> None:
    process = Process(AUTO)
    ran: list[int] = []
    with process.occupied():
        assert not process.dispatcher.run_idle(idle_request(process), lambda: ran.append(1))
    process.offer(process.request(2))
    assert not process.dispatcher.run_idle(idle_request(process), lambda: ran.append(2))
    process.work_off()
    assert process.dispatcher.run_idle(idle_request(process), lambda: ran.append(3))
    assert ran == [3]
    process.check_idle()


def test_a_request_that_is_queued_just_before_a_task_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(AUTO)
    offer, first = process.batcher.offer, process.request(3)

    def offer_both(request: TaskRequest, now: float) -> None:
        offer(first, now)
        offer(request, now)

    monkeypatch.setattr(process.batcher, "offer", offer_both)
    ran: list[bool] = []
    assert not process.dispatcher.run_idle(idle_request(process), lambda: ran.append(True))
    first.check_answer()
    assert ran == [] and process.recorder.dropped == []
    process.check_idle()


def test_deadlines_are_not_judged_by_the_queue_of_tasks() -> None:
    process = Process(AUTO, costs={1: 10.0, 1024: 10.0})
    process.offer(*(process.request(tag) for tag in range(3)))
    backlog = process.dispatcher.backlog()
    assert backlog > 1.0
    idle_request(process)
    assert process.dispatcher.backlog() == backlog
