"""Calls on real threads: each runs once, in time, and none waits for ever."""

import math
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest

from serving.abi.scheduler import State
from serving.scheduler.batch_threads import BatchThreads
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.version_queue import VersionQueue
from tests.reference.batcher import Batch
from tests.reference.request_queue import QueuedRequest
from tests.support.compiled_batcher import CompiledBatcher
from tests.support.waiting import until

# Nothing in a test that passes takes so long.
HANG_SECONDS = 20.0
SLOTS = pytest.mark.parametrize("slots", [1, 2])
AUTO = BatchingPolicy()
INLINE = BatchingPolicy(BatchingMode.INLINE)
# Seconds of a batch by samples: merging saves time, so that batches wait for more.
COSTS = {1: 1e-3, 1024: 1.1e-3}


class Task(QueuedRequest):
    """A request that runs for `seconds`, and until its `gate` opens; `ends` counts its ends."""

    def __init__(
        self,
        queue: VersionQueue,
        tag: int,
        *,
        seconds: float = 0.0,
        gate: threading.Event | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(queue, **fields)
        self.tag, self.seconds, self.gate = tag, seconds, gate
        self.ends = 0
        self.ended = threading.Event()

    def end(self) -> None:
        self.ends += 1
        self.ended.set()

    def check_ran(self) -> None:
        assert self.ended.wait(HANG_SECONDS), f"no end: {self.tag}"
        assert (self.ends, self.state) == (1, State.RUNNING)


class Process:
    """A dispatcher with a queue for each policy; it runs the tasks itself.

    Attributes:
        batches: tags of the tasks that ran.
        most: batches at once.
    """

    def __init__(self, *policies: BatchingPolicy, slots: int = 1) -> None:
        self.batcher = CompiledBatcher(slots=slots)
        self.dispatcher: Dispatcher[Batch[Task]] = Dispatcher(self.batcher, self)
        self.queues = [VersionQueue(policy, COSTS) for policy in policies]
        for queue in self.queues:
            self.batcher.add_queue(queue)
        self.batches: list[list[int]] = []
        self.most = self._running = 0
        self.meet: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def begin(self, now: float) -> tuple[Batch[Task] | None, bool]:
        taken = self.batcher.take(now)
        for task in taken.dropped:
            task.end()
        return taken.batch, taken.more

    def run(self, batch: Batch[Task]) -> None:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
            self.batches.append([task.tag for task in batch.requests])
        self.meet()
        sleep(max(task.seconds for task in batch.requests))
        for task in batch.requests:
            assert task.gate is None or task.gate.wait(HANG_SECONDS)
        with self._lock:
            self._running -= 1
        self.batcher.finish(batch, monotonic())
        for task in batch.requests:
            task.end()

    def expire(self, now: float) -> None:
        for task in self.batcher.expire(now):
            task.end()

    def occupy(self, queue: VersionQueue, now: float) -> Callable[[], None] | None:
        batch = self.batcher.occupy(queue, now)
        return None if batch is None else lambda: self.batcher.finish(batch, monotonic())

    def task(
        self,
        tag: int,
        *,
        samples: int = 1,
        seconds_left: float = math.inf,
        age: float = 0.0,
        queue: int = 0,
        **fields: Any,
    ) -> Task:
        now = monotonic()
        fields |= {"arrived": now - age, "deadline": now + seconds_left}
        return Task(self.queues[queue], tag, samples=samples, **fields)

    def offer(self, *tasks: Task) -> None:
        for task in tasks:
            assert self.batcher.offer(task, monotonic()) is None

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
        self.offer(self.task(-1, gate=gate, queue=queue))
        thread = threading.Thread(target=self.dispatcher.work)
        thread.start()
        try:
            until(lambda: [-1] in self.batches, "the slot is taken")
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
        assert self.batcher.idle_slots == self.batcher.slots


def random_task(process: Process, tag: int, generator: random.Random) -> Task:
    is_pressing = generator.random() < 0.2
    return process.task(
        tag,
        samples=generator.choice([1, 1, 2, 7, 30, 100]),
        queue=generator.random() < 0.2,
        age=generator.choice([0.0, generator.uniform(0.0, 0.0006)]),
        seconds_left=generator.uniform(0.0005, 0.02) if is_pressing else math.inf,
        seconds=generator.choice([0.0, 0.0, 0.0, 0.0003, 0.002]),
    )


@SLOTS
@pytest.mark.parametrize("mode", list(BatchingMode))
def test_every_call_ends_once_and_no_wake_up_is_lost(mode: BatchingMode, slots: int) -> None:
    # Deadlines pass, clients go away, batches fill; a lost wake-up leaves a call.
    process = Process(BatchingPolicy(mode, 64, 0.0005), AUTO, slots=slots)
    offered: list[Task] = []
    tags = count()

    def offer(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(150):
            task = random_task(process, next(tags), generator)
            if process.batcher.offer(task, monotonic()) is None:
                offered.append(task)
                threads.wake()
                if generator.random() < 0.1 and process.batcher.cancel(task):
                    task.end()
            if generator.random() < 0.2:
                sleep(generator.choice([0.0001, 0.001, 0.003]))

    with process.running() as threads:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(offer, range(8)))
        assert next(tags) == 8 * 150
        for task in offered:
            assert task.ended.wait(HANG_SECONDS), f"no end: {task.tag}"
    ran = [tag for batch in process.batches for tag in batch]
    assert len(ran) == len(set(ran)), "a call ran twice"
    assert {task.tag for task in offered if task.state is State.RUNNING} == set(ran)
    assert all(task.ends == 1 for task in offered)
    assert len(ran) > 300 and 1 <= process.most <= slots
    process.check_idle()


def test_a_batch_that_is_ready_takes_every_slot_that_is_free() -> None:
    process = Process(INLINE, slots=2)
    # The two end only if they run side by side.
    process.meet = threading.Barrier(2, timeout=HANG_SECONDS).wait
    with process.running() as threads:
        for turn in range(50):
            pair = [process.task(2 * turn), process.task(2 * turn + 1)]
            process.offer(*pair)
            threads.wake()
            for task in pair:
                task.check_ran()


def test_the_rest_of_a_full_batch_runs_after_the_delay() -> None:
    process = Process(BatchingPolicy(BatchingMode.BATCHED, 8, 1.0), INLINE)
    tasks = [process.task(tag) for tag in range(11)]
    with process.running() as threads:
        with process.occupied(queue=1):
            process.offer(*tasks)
            threads.wake()
        for task in tasks:
            task.check_ran()
    assert [len(batch) for batch in process.batches] == [1, 8, 3]


@SLOTS
def test_another_task_holds_an_idle_slot_while_it_runs_and_frees_it_if_it_fails(
    slots: int,
) -> None:
    process = Process(AUTO, slots=slots)
    idle = VersionQueue(INLINE, COSTS)
    with pytest.raises(ZeroDivisionError):
        process.dispatcher.run_idle(idle, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    process.check_idle()
    beside = process.task(1)
    ran: list[bool] = []

    def offer_meanwhile() -> None:
        assert process.dispatcher.running_since <= monotonic()
        process.offer(beside)
        thread = threading.Thread(target=lambda: ran.append(process.dispatcher.work()))
        thread.start()
        thread.join(HANG_SECONDS)

    assert process.dispatcher.run_idle(idle, offer_meanwhile)
    assert ran == [slots == 2], "with one slot, the call waits for the task"
    # The thread of the task has run it before it returned.
    beside.check_ran()
    assert process.batches == [[1]]
    process.check_idle()


def test_no_other_task_runs_while_slots_are_taken_or_calls_wait() -> None:
    process = Process(AUTO)
    idle = VersionQueue(INLINE, COSTS)
    ran: list[int] = []
    with process.occupied():
        assert not process.dispatcher.run_idle(idle, lambda: ran.append(1))
    process.offer(process.task(2))
    assert not process.dispatcher.run_idle(idle, lambda: ran.append(2))
    process.work_off()
    assert process.dispatcher.run_idle(idle, lambda: ran.append(3))
    assert ran == [3]
    process.check_idle()


def test_no_thread_is_due_while_another_gathers_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(AUTO)
    task = process.task(1, age=1.0)
    process.offer(task)
    assert process.dispatcher.due() < math.inf
    dues: list[float] = []
    monkeypatch.setattr(
        process.dispatcher, "_make_way", lambda: dues.append(process.dispatcher.due())
    )
    assert process.dispatcher.work()
    assert dues == [math.inf]
    task.check_ran()
