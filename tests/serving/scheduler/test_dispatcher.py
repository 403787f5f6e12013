"""Requests on real threads: every one gets its own answer, in time, and nobody waits for ever."""

import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import Any, ClassVar

import pytest

from serving.errors import CancelledError, DeadlineError, QueueFullError
from serving.scheduler.batcher import Batch, Batcher, QueueLimits
from serving.scheduler.compiled_batcher import CompiledBatcher
from serving.scheduler.compiled_queue import CompiledQueue
from serving.scheduler.cost_table import CostTable
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.request_queue import (
    LOWEST_PRIORITY,
    BatchingMode,
    BatchingPolicy,
    QueuedRequest,
    RequestQueue,
    RequestState,
)
from serving.scheduler.scheduler import Scheduler
from serving.scheduler.version_queue import VersionQueue

# Nothing in a test that passes takes so long.
HANG_SECONDS = 20.0
SLOTS = pytest.mark.parametrize("slots", [1, 2])
MODES = pytest.mark.parametrize("mode", list(BatchingMode))
# What a batch costs, in seconds by samples: merging saves time, so that batches wait for more.
COSTS = {1: 1e-3, 1024: 1.1e-3}


class Stumble(Exception):  # noqa: N818 - it is what a test's `execute` says
    """What an order that asks for it gets in place of a result."""


@dataclass(slots=True)
class Task:
    """What a test asks for.

    Attributes:
        tag: of the order, for its result.
        fails: its result is an exception.
        breaks: `execute` raises.
        seconds: its batch takes.
        gate: its batch takes until this is set.
    """

    tag: int = 0
    fails: bool = False
    breaks: bool = False
    seconds: float = 0.0
    gate: threading.Event | None = None


class Order(QueuedRequest):
    """A request for a task."""

    __slots__ = ("task",)

    def __init__(self, queue: VersionQueue, task: Task, **fields: Any) -> None:
        super().__init__(queue, **fields)
        self.task = task


@dataclass(slots=True)
class Kitchen:
    """An `execute`, and what it saw.

    Attributes:
        batches: tags of the orders that ran together.
        most: batches that ran side by side, at most.
        dropped: tags and states of what left the queue.
        observed: batches that the dispatcher told of.
    """

    batches: list[list[int]] = field(default_factory=list)
    most: int = 0
    dropped: list[tuple[int, RequestState]] = field(default_factory=list)
    observed: list[Batch] = field(default_factory=list)
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: threading.Condition = field(default_factory=threading.Condition)

    def execute(self, orders: Sequence[Order]) -> Sequence[Any]:
        tasks = [order.task for order in orders]
        with self._begun:
            self._running += 1
            self.most = max(self.most, self._running)
            self.batches.append([task.tag for task in tasks])
            self._begun.notify_all()
        try:
            if longest := max(task.seconds for task in tasks):
                sleep(longest)
            for task in tasks:
                if task.gate is not None:
                    assert task.gate.wait(HANG_SECONDS)
                if task.breaks:
                    raise Stumble(f"batch of {task.tag}")
            return [Stumble(task.tag) if task.fails else ("answer", task.tag) for task in tasks]
        finally:
            with self._begun:
                self._running -= 1

    def observe(self, batch: Batch, seconds: float) -> None:
        assert seconds >= 0
        with self._lock:
            self.observed.append(batch)

    def drop(self, order: Order) -> None:
        with self._lock:
            self.dropped.append((order.task.tag, order.state))

    def wait_for(self, tag: int) -> None:
        """Until a order has begun."""
        with self._begun:
            assert self._begun.wait_for(lambda: tag in self.tags, HANG_SECONDS), f"{tag} not begun"

    @property
    def tags(self) -> list[int]:
        return [tag for batch in self.batches for tag in batch]


class Restaurant:
    """A dispatcher over a kitchen, with one queue unless there are more.

    Attributes:
        batcher: makes its scheduler, of the kind that a test is for.
        queue: makes a queue of that kind.
    """

    batcher: ClassVar[Callable[..., Scheduler[Any]]]
    queue: ClassVar[Callable[[BatchingPolicy, Mapping[int, float]], VersionQueue]]

    def __init__(
        self,
        *policies: BatchingPolicy,
        slots: int = 1,
        limits: QueueLimits | None = None,
        costs: dict[int, float] | None = None,
    ) -> None:
        self.kitchen = Kitchen()
        self.dispatcher = Dispatcher(
            self.batcher(slots=slots, limits=limits),
            self.kitchen.execute,
            observe=self.kitchen.observe,
            on_waiting=lambda _: None,
            on_dropped=self.kitchen.drop,
        )
        self.queues = [self.queue(policy, costs or COSTS) for policy in policies]
        for queue in self.queues:
            self.dispatcher.add_queue(queue)

    def order(
        self,
        tag: int,
        *,
        samples: int = 1,
        seconds_left: float = math.inf,
        age: float = 0.0,
        queue: int = 0,
        on_done: Callable[[Order], None] | None = None,
        **task: Any,
    ) -> Order:
        now = monotonic()
        return Order(
            self.queues[queue],
            Task(tag, **task),
            samples=samples,
            arrived=now - age,
            deadline=now + seconds_left,
            on_done=on_done,
        )


def _reference_queue(policy: BatchingPolicy, measured: Mapping[int, float]) -> VersionQueue:
    return RequestQueue(policy, CostTable(measured))


@pytest.fixture(autouse=True, params=["reference", "compiled"])
def scheduler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with both kinds of scheduler."""
    makers = {
        "reference": (Batcher, _reference_queue),
        "compiled": (CompiledBatcher, CompiledQueue),
    }
    batcher, queue = makers[request.param]
    monkeypatch.setattr(Restaurant, "batcher", staticmethod(batcher), raising=False)
    monkeypatch.setattr(Restaurant, "queue", staticmethod(queue), raising=False)


AUTO = BatchingPolicy()
INLINE = BatchingPolicy(BatchingMode.INLINE)


@contextmanager
def watched(seconds: float = HANG_SECONDS) -> Iterator[Callable[..., threading.Thread]]:
    """Threads that must have ended soon after the block; gives what starts one."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(function: Callable[..., object], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                function(*arguments)
            except BaseException as error:  # told to the test below
                errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    end = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))
    hanging = sum(thread.is_alive() for thread in threads)
    assert not errors, errors[0]
    assert not hanging, f"{hanging} of {len(threads)} threads hang"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = monotonic() + HANG_SECONDS
    while not condition():
        assert monotonic() < end, f"never: {what}"
        sleep(0.001)


def waits(place: Restaurant, requests: int) -> None:
    """Until so many wait in the queue."""
    wait_until(lambda: place.dispatcher.waiting[0] == requests, f"{requests} wait")


def assert_answered(order: Order) -> None:
    """It has its own result, or its own exception if it asked for one."""
    task = order.task
    if task.fails:
        assert order.result is None
        assert isinstance(order.error, Stumble) and order.error.args == (task.tag,)
    else:
        assert order.error is None, order.error
        assert order.result == ("answer", task.tag)


def assert_empty(place: Restaurant) -> None:
    assert place.dispatcher.waiting == (0, 0)
    assert place.dispatcher.due() == math.inf


# ---------------------------------------------------------------- every order its own answer


@SLOTS
@MODES
def test_every_thread_that_waits_gets_its_own_answer(mode: BatchingMode, slots: int) -> None:
    place = Restaurant(BatchingPolicy(mode, 64, 0.002), slots=slots)
    done: list[list[Order]] = [[] for _ in range(64)]

    def client(number: int) -> None:
        generator = random.Random(number)
        for turn in range(20):
            order = place.order(
                100 * number + turn,
                samples=generator.choice([1, 1, 2, 7, 30, 100]),
                fails=generator.random() < 0.1,
                seconds=generator.choice([0.0, 0.0, 0.0005]),
            )
            place.dispatcher.run(order)
            done[number].append(order)

    with watched() as start:
        for number in range(64):
            start(client, number)
    orders = [order for mine in done for order in mine]
    assert len(orders) == 64 * 20
    for order in orders:
        assert_answered(order)
    assert sorted(place.kitchen.tags) == sorted(order.task.tag for order in orders), (
        "each runs once"
    )
    assert len(place.kitchen.observed) == len(place.kitchen.batches)
    assert 1 <= place.kitchen.most <= slots
    together = max(len(batch) for batch in place.kitchen.batches)
    assert together == 1 if mode is BatchingMode.INLINE else together > 1
    assert_empty(place)


class Waiters:
    """Threads that bring offered orders and work, as a transport's do, until told to end."""

    def __init__(self, place: Restaurant, threads: int, start: Callable[..., object]) -> None:
        self._dispatcher = place.dispatcher
        self._orders: list[Order] = []
        self._lock = threading.Lock()
        self._open = True
        for _ in range(threads):
            start(self._serve)

    def bring(self, orders: Iterable[Order]) -> None:
        with self._lock:
            self._orders.extend(orders)

    def close(self) -> None:
        self._open = False

    def _serve(self) -> None:
        while self._open:
            with self._lock:
                # Never more than may wait.
                few = 5 if self._dispatcher.waiting[0] < 500 else 0
                orders, self._orders = self._orders[:few], self._orders[few:]
            for order in orders:
                self._dispatcher.offer(order)
            self._dispatcher.expire()
            if not self._dispatcher.work() and not orders:
                sleep(max(0.0, min(0.001, self._dispatcher.due() - monotonic())))


@SLOTS
@MODES
def test_every_offered_order_is_answered_once(mode: BatchingMode, slots: int) -> None:
    place = Restaurant(BatchingPolicy(mode, 64, 0.002), slots=slots)
    told: Counter[int] = Counter()
    counting = threading.Lock()

    def done(order: Order) -> None:
        with counting:
            told[order.task.tag] += 1

    generator = random.Random(1)
    orders = [
        place.order(
            tag,
            samples=generator.choice([1, 2, 7, 30, 100]),
            fails=tag % 11 == 0,
            seconds=generator.choice([0.0, 0.0005]),
            on_done=done,
        )
        for tag in range(1200)
    ]
    with watched() as start:
        waiters = Waiters(place, slots + 1, start)
        waiters.bring(orders)
        wait_until(lambda: told.total() >= len(orders), "everybody has an answer")
        waiters.close()
    assert told == Counter(range(len(orders)))
    for order in orders:
        assert_answered(order)
    assert sorted(place.kitchen.tags) == list(range(len(orders)))
    assert 1 <= place.kitchen.most <= slots
    assert_empty(place)


@SLOTS
def test_both_ways_of_use_go_together(slots: int) -> None:
    place = Restaurant(AUTO, INLINE, BatchingPolicy(BatchingMode.BATCHED, 64, 0.002), slots=slots)
    told: Counter[int] = Counter()
    counting = threading.Lock()

    def done(order: Order) -> None:
        with counting:
            told[order.task.tag] += 1

    offered = [
        place.order(10_000 + tag, samples=1 + tag % 5, queue=tag % 3, on_done=done)
        for tag in range(600)
    ]
    waited: list[Order] = []

    def client(number: int) -> None:
        for turn in range(30):
            order = place.order(100 * number + turn, samples=1 + turn % 3, queue=turn % 3)
            place.dispatcher.run(order)
            waited.append(order)

    with watched() as start:
        waiters = Waiters(place, 2, start)
        for number in range(16):
            start(client, number)
        for first in range(0, len(offered), 20):
            waiters.bring(offered[first : first + 20])
            sleep(0.001)
        wait_until(lambda: len(waited) == 480 and told.total() >= 600, "everybody has an answer")
        waiters.close()
    assert set(told.values()) == {1} and len(told) == 600
    for order in (*offered, *waited):
        assert_answered(order)
    assert_empty(place)


def test_a_thread_that_leaves_runs_what_was_offered_and_nobody_waits_for() -> None:
    place = Restaurant(AUTO)
    gate, answered = threading.Event(), threading.Event()
    with watched() as start:
        start(place.dispatcher.run, place.order(1, gate=gate))
        place.kitchen.wait_for(1)
        offered = place.order(2, on_done=lambda _: answered.set())
        place.dispatcher.offer(offered)
        assert not place.dispatcher.work(), "the slot is taken"
        gate.set()
        assert answered.wait(HANG_SECONDS)
    assert_answered(offered)


# ---------------------------------------------------------------- slots


@SLOTS
def test_no_more_batches_run_side_by_side_than_there_are_slots(slots: int) -> None:
    place = Restaurant(INLINE, slots=slots)
    with watched() as start:
        for number in range(12):
            start(place.dispatcher.run, place.order(number, seconds=0.02))
    assert place.kitchen.most == slots
    assert sorted(place.kitchen.tags) == list(range(12))


def test_a_batch_that_is_ready_takes_every_slot_that_is_free() -> None:
    place = Restaurant(INLINE, slots=2)
    first, second = threading.Event(), threading.Event()
    # Both slots become free before either of the two that wait has woken up; they end together
    # only if they run side by side.
    both = threading.Barrier(2)
    execute = place.kitchen.execute

    def meet(orders: Sequence[Order]) -> Sequence[Any]:
        if orders[0].task.tag in (3, 4):
            both.wait(5.0)
        return execute(orders)

    for _ in range(50):
        place.dispatcher._execute = meet
        first.clear()
        second.clear()
        orders = [place.order(3), place.order(4)]
        with watched() as start:
            start(place.dispatcher.run, place.order(1, gate=first))
            start(place.dispatcher.run, place.order(2, gate=second))
            wait_until(lambda: place.kitchen._running == 2, "two run")
            for order in orders:
                start(place.dispatcher.run, order)
            waits(place, 2)
            first.set()
            second.set()
        assert [order.error for order in orders] == [None, None]


# ---------------------------------------------------------------- exceptions


def together(place: Restaurant, *orders: Order) -> None:
    """Runs orders so that they are one batch: they wait while another runs."""
    gate, before = threading.Event(), -1 - len(place.kitchen.batches)
    with watched() as start:
        start(place.dispatcher.run, place.order(before, gate=gate))
        place.kitchen.wait_for(before)
        for order in orders:
            start(place.dispatcher.run, order)
        waits(place, len(orders))
        gate.set()
    assert sorted(place.kitchen.batches[-1]) == sorted(order.task.tag for order in orders)


def test_an_exception_of_one_order_does_not_touch_its_mates() -> None:
    place = Restaurant(AUTO)
    orders = [place.order(tag, fails=tag == 2) for tag in range(5)]
    together(place, *orders)
    for order in orders:
        assert_answered(order)


def test_an_execute_that_raises_fails_its_orders_and_the_next_ones_are_answered() -> None:
    place = Restaurant(AUTO)
    orders = [place.order(tag, breaks=tag == 2) for tag in range(5)]
    together(place, *orders)
    for order in orders:
        assert order.result is None
        assert isinstance(order.error, Stumble) and order.error.args == ("batch of 2",)
    after = [place.order(tag) for tag in range(10, 15)]
    together(place, *after)
    for order in after:
        assert_answered(order)
    assert_empty(place)


def test_an_answer_that_cannot_be_told_does_not_keep_its_mates_from_theirs() -> None:
    place = Restaurant(AUTO)
    told: list[int] = []

    def done(order: Order) -> None:
        if order.task.tag == 1:
            raise Stumble("the client's connection")
        told.append(order.task.tag)

    orders = [place.order(tag, on_done=done) for tag in range(4)]
    for order in orders:
        place.dispatcher.offer(order)
    with watched() as start:

        def work() -> None:
            try:
                place.dispatcher.work()
            except Stumble:
                told.append(-1)

        start(work)
    assert sorted(set(told) - {-1}) == [0, 2, 3]
    assert_empty(place)


# ---------------------------------------------------------------- cancelled, late, refused


@contextmanager
def occupied(
    place: Restaurant, start: Callable[..., object], *, queue: int = 0
) -> Iterator[threading.Event]:
    """A batch runs, and takes the one slot until the event is set or the block ends."""
    gate = threading.Event()
    start(place.dispatcher.run, place.order(-1, gate=gate, queue=queue))
    place.kitchen.wait_for(-1)
    try:
        yield gate
    finally:
        gate.set()


def test_an_order_that_is_cancelled_while_it_waits_is_not_run() -> None:
    place = Restaurant(AUTO)
    orders = [place.order(tag) for tag in range(3)]
    with watched() as start, occupied(place, start):
        threads = [start(place.dispatcher.run, order) for order in orders]
        waits(place, 3)
        place.dispatcher.cancel(orders[1])
        # Its thread leaves while the batch still runs.
        threads[1].join(HANG_SECONDS)
        assert not threads[1].is_alive() and place.dispatcher.waiting[0] == 2
        assert isinstance(orders[1].error, CancelledError) and orders[1].result is None
    assert 1 not in place.kitchen.tags
    assert place.kitchen.dropped == [(1, RequestState.CANCELLED)]
    assert_answered(orders[0])
    assert_answered(orders[2])


def test_an_offered_order_that_is_cancelled_is_told_once() -> None:
    place = Restaurant(AUTO)
    told: list[Order] = []
    order = place.order(1, on_done=told.append)
    place.dispatcher.offer(order)
    place.dispatcher.cancel(order)
    place.dispatcher.cancel(order)
    assert told == [order] and isinstance(order.error, CancelledError)
    assert not place.dispatcher.work()
    assert_empty(place)


def test_an_order_that_runs_or_has_run_is_not_disturbed_by_a_cancel() -> None:
    place = Restaurant(AUTO)
    order = place.order(1, gate=threading.Event())
    with watched() as start:
        start(place.dispatcher.run, order)
        place.kitchen.wait_for(1)
        place.dispatcher.cancel(order)
        order.task.gate.set()
    place.dispatcher.cancel(order)
    assert_answered(order)
    assert place.kitchen.dropped == []


def test_a_deadline_that_passes_while_a_long_batch_runs_is_told_before_it_ends() -> None:
    place = Restaurant(AUTO)
    waited = place.order(1, seconds_left=0.5)
    with watched() as start, occupied(place, start):
        thread = start(place.dispatcher.run, waited)
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
        assert isinstance(waited.error, DeadlineError) and "while it waited" in str(waited.error)
        assert place.dispatcher.waiting == (0, 0)
    assert place.kitchen.dropped == [(1, RequestState.EXPIRED)]
    assert place.kitchen.tags == [-1]


def test_offered_orders_whose_deadlines_pass_are_told_when_somebody_looks() -> None:
    place = Restaurant(AUTO)
    told: list[Order] = []
    short, lasting = (
        place.order(tag, seconds_left=left, on_done=told.append)
        for tag, left in ((1, 2.5), (2, 60))
    )
    with watched() as start, occupied(place, start):
        for order in (short, lasting):
            place.dispatcher.offer(order)
        place.dispatcher.expire()
        assert told == []
        # Until the deadline, which it is not told of.
        sleep(2.6)
        place.dispatcher.expire()
        assert told == [short] and isinstance(short.error, DeadlineError)
        assert place.kitchen.dropped == [(1, RequestState.EXPIRED)]
        assert place.dispatcher.waiting == (1, 1)
    place.dispatcher.work()
    assert_answered(lasting)


def test_an_order_that_waited_until_it_cannot_be_in_time_any_more_is_dropped_and_told() -> None:
    place = Restaurant(AUTO, costs={1: 2.0})
    order = place.order(1, seconds_left=5.6)
    with watched() as start, occupied(place, start):
        start(place.dispatcher.run, order)
        waits(place, 1)
        # Nearly until the latest moment to begin.
        sleep(4.2)
        # Its size has been seen just now: what it costs is known.
        place.queues[0].costs.observe(1, 2.0, monotonic())
        assert not order.done
    assert isinstance(order.error, DeadlineError) and "its turn came" in str(order.error)
    assert place.kitchen.dropped == [(1, RequestState.INFEASIBLE)]


def test_a_refused_order_is_raised_and_leaves_nothing_behind() -> None:
    place = Restaurant(AUTO, limits=QueueLimits(requests=2))
    told: list[Order] = []
    with watched() as start, occupied(place, start):
        orders = [place.order(tag, on_done=told.append) for tag in range(2)]
        for order in orders:
            place.dispatcher.offer(order)
        for refused in (place.order(7), place.order(8, on_done=told.append)):
            way = place.dispatcher.run if refused.on_done is None else place.dispatcher.offer
            with pytest.raises(QueueFullError) as full:
                way(refused)
            assert full.value.retry_seconds > 0
            assert refused.state is RequestState.NEW
        for late in (place.order(9, seconds_left=-1.0), place.order(10, seconds_left=0.0)):
            with pytest.raises(DeadlineError, match="had passed"):
                place.dispatcher.run(late)
        assert place.dispatcher.waiting == (2, 2)
        assert told == [] and place.kitchen.dropped == []
    wait_until(lambda: len(told) == 2, "two answers")
    for order in orders:
        assert_answered(order)
    assert not {7, 8, 9, 10} & set(place.kitchen.tags)
    assert_empty(place)


def test_a_refused_request_is_not_on_its_way_any_more() -> None:
    place = Restaurant(AUTO)
    place.dispatcher.arrivals.received()
    place.dispatcher.arrivals.begin()
    with pytest.raises(DeadlineError):
        place.dispatcher.run(place.order(1, seconds_left=-1.0))
    assert place.dispatcher.arrivals.in_transit == 0


# ---------------------------------------------------------------- batched queues


def batched(max_delay: float, max_batch: int = 8) -> BatchingPolicy:
    return BatchingPolicy(BatchingMode.BATCHED, max_batch, max_delay)


def test_a_batched_order_waits_the_delay_for_others() -> None:
    place = Restaurant(batched(1.0))
    order = place.order(1)
    started = monotonic()
    with watched() as start:
        start(place.dispatcher.run, order)
        waits(place, 1)
        start(place.dispatcher.run, place.order(2))
    assert_answered(order)
    assert order.started - started >= 0.99
    assert place.kitchen.batches == [[1, 2]]


def test_a_full_batch_wakes_those_who_wait_for_the_delay() -> None:
    place = Restaurant(batched(10 * HANG_SECONDS))
    with watched() as start:
        for tag in range(7):
            start(place.dispatcher.run, place.order(tag))
        waits(place, 7)
        assert place.kitchen.batches == []
        start(place.dispatcher.run, place.order(7))
    assert [sorted(batch) for batch in place.kitchen.batches] == [list(range(8))]


def test_a_batch_is_filled_while_another_runs() -> None:
    place = Restaurant(batched(10 * HANG_SECONDS), INLINE)
    with watched() as start, occupied(place, start, queue=1):
        for tag in range(8):
            start(place.dispatcher.run, place.order(tag))
        waits(place, 8)
    assert [sorted(batch) for batch in place.kitchen.batches] == [[-1], list(range(8))]


def test_a_batched_order_whose_delay_ends_as_it_comes_is_run() -> None:
    # The delay may end between two looks at the clock: nobody else would come to wake it up.
    place = Restaurant(batched(0.01))
    generator = random.Random(3)
    ages = [0.01 - generator.uniform(0.0, 60e-6) for _ in range(2000)]
    orders = []

    def client() -> None:
        for tag, age in enumerate(ages):
            orders.append(place.order(tag, age=age))
            place.dispatcher.run(orders[-1])

    with watched() as start:
        start(client)
    assert len(orders) == len(ages)
    for order in orders:
        assert_answered(order)


def test_a_batched_order_is_run_though_the_one_it_was_to_go_with_is_cancelled() -> None:
    # The first has waited long enough, so the batch waits only for the slot; without it, the batch
    # is due later than the slot is free.
    place = Restaurant(batched(1.0), INLINE)
    first, second = place.order(1, age=5.0), place.order(2)
    with watched(10.0) as start, occupied(place, start, queue=1) as gate:
        for order in (first, second):
            start(place.dispatcher.run, order)
        waits(place, 2)
        # Their threads sleep by then.
        sleep(0.05)
        place.dispatcher.cancel(first)
        gate.set()
    assert isinstance(first.error, CancelledError)
    assert_answered(second)


def test_those_who_are_left_over_from_a_full_batch_are_run_when_they_have_waited() -> None:
    # They came when the batch was full, and waited only for the slot; then they are too few.
    place = Restaurant(batched(1.0), INLINE)
    orders = [place.order(tag) for tag in range(11)]
    with watched(10.0) as start, occupied(place, start, queue=1):
        for number, order in enumerate(orders):
            start(place.dispatcher.run, order)
            waits(place, number + 1)
        # Their threads sleep by then.
        sleep(0.05)
    for order in orders:
        assert_answered(order)
    assert [len(batch) for batch in place.kitchen.batches] == [1, 8, 3]


def test_a_batched_order_waits_no_longer_than_its_deadline_allows() -> None:
    place = Restaurant(batched(10 * HANG_SECONDS), costs={1: 1.0})
    order = place.order(1, seconds_left=1.5)
    with watched() as start:
        start(place.dispatcher.run, order)
    assert_answered(order)


def test_what_is_due_and_what_waits_is_said() -> None:
    place = Restaurant(batched(10.0), AUTO, slots=2)
    dispatcher = place.dispatcher
    assert dispatcher.slots == 2
    assert_empty(place)
    waiting = place.order(1, samples=3, on_done=lambda _: None)
    dispatcher.offer(waiting)
    assert dispatcher.waiting == (1, 3)
    assert dispatcher.due() == waiting.arrived + 10.0
    assert not dispatcher.work(), "it is not due"
    other = place.order(2, samples=4, queue=1, on_done=lambda _: None)
    dispatcher.offer(other)
    assert dispatcher.waiting == (2, 7)
    assert dispatcher.due() <= monotonic()
    assert dispatcher.work() and not dispatcher.work()
    assert_answered(other)
    assert dispatcher.waiting == (1, 3) and not waiting.done
    dispatcher.cancel(waiting)
    assert_empty(place)


def test_nothing_is_due_while_all_slots_run() -> None:
    place = Restaurant(AUTO)
    with watched() as start, occupied(place, start):
        order = place.order(1, on_done=lambda _: None)
        place.dispatcher.offer(order)
        assert place.dispatcher.due() == math.inf
        assert not place.dispatcher.work()
    place.dispatcher.work()
    assert_answered(order)


# ---------------------------------------------------------------- company


def test_a_batch_waits_for_those_on_their_way_and_takes_them_along() -> None:
    place = Restaurant(AUTO, costs={1: 0.5, 1024: 0.51})
    dispatcher = place.dispatcher
    met = 0
    for turn in range(20):
        dispatcher.arrivals.received(2)

        def bring(tag: int) -> None:
            dispatcher.arrivals.begin()
            dispatcher.run(place.order(tag))

        with watched() as start:
            start(bring, 2 * turn)
            start(bring, 2 * turn + 1)
        met += len(place.kitchen.batches[-1]) == 2
    assert dispatcher.arrivals.in_transit == 0
    assert sorted(place.kitchen.tags) == list(range(40))
    assert met > 0, "they never went together"


def test_a_request_that_never_comes_holds_nobody_up_for_long() -> None:
    place = Restaurant(AUTO, costs={1: 10.0, 1024: 10.1})
    place.dispatcher.arrivals.received()
    started = monotonic()
    with watched() as start:
        start(place.dispatcher.run, place.order(1))
    assert monotonic() - started < 20.0
    assert place.dispatcher.arrivals.in_transit == 0, "it is late"


def test_a_thread_that_has_gathered_waits_for_nobody() -> None:
    place = Restaurant(AUTO, costs={1: 10.0, 1024: 10.1})
    dispatcher, order = place.dispatcher, place.order(1)
    order.on_done = lambda _: None
    dispatcher.arrivals.received()
    dispatcher.offer(order)
    assert dispatcher.work(gathered=True)
    assert order.done
    assert dispatcher.arrivals.in_transit == 1, "it was waited for, and is late"


# ---------------------------------------------------------------- nothing is lost


@SLOTS
@MODES
def test_no_wake_up_is_lost(mode: BatchingMode, slots: int) -> None:
    # Leaders leave at all moments, deadlines pass, clients go away, batches fill; whoever waits for
    # a wake-up that never comes hangs.
    place = Restaurant(
        BatchingPolicy(mode, 6, 0.0005), BatchingPolicy(BatchingMode.AUTO), slots=slots
    )
    dispatcher = place.dispatcher
    tags = count()
    fates: Counter[str] = Counter()
    ended: list[Order] = []
    # As many as count, however long a busy machine takes.
    least, stop = 350, monotonic() + 1.5

    def client(number: int) -> None:
        generator = random.Random(number)
        while monotonic() < stop or sum(order.error is None for order in ended.copy()) < least:
            pressing = generator.random() < 0.2
            order = place.order(
                next(tags),
                samples=generator.choice([1, 1, 2, 5]),
                queue=generator.random() < 0.2,
                age=generator.choice([0.0, generator.uniform(0.0, 0.0006)]),
                seconds_left=generator.uniform(0.0005, 0.02) if pressing else math.inf,
                seconds=generator.choice([0.0, 0.0, 0.0, 0.0003, 0.002]),
            )
            if generator.random() < 0.1:
                threading.Timer(generator.uniform(0.0, 0.004), dispatcher.cancel, (order,)).start()
            dispatcher.arrivals.received()
            dispatcher.arrivals.begin()
            try:
                dispatcher.run(order)
            except DeadlineError:
                fates["refused"] += 1
                continue
            ended.append(order)
            if generator.random() < 0.5:
                sleep(generator.choice([0.0, 0.0001, 0.001, 0.003]))

    with watched(60.0 + HANG_SECONDS) as start:
        for number in range(24):
            start(client, number)
    for order in ended:
        assert order.done
        fates[type(order.error).__name__] += 1
        if order.error is None:
            assert order.result == ("answer", order.task.tag)
        else:
            assert isinstance(order.error, (DeadlineError, CancelledError)), order.error
    ran = set(place.kitchen.tags)
    assert len(ran) == len(place.kitchen.tags), "a order ran twice"
    assert ran == {order.task.tag for order in ended if order.error is None}
    assert len(place.kitchen.dropped) == sum(order.error is not None for order in ended)
    assert fates["NoneType"] > 300 and dispatcher.arrivals.in_transit == 0
    assert 1 <= place.kitchen.most <= slots
    assert_empty(place)


def test_the_thread_of_the_last_answer_hands_on_to_those_who_wait() -> None:
    # One after another: each leader has its own answer after one batch, and goes.
    place = Restaurant(INLINE)
    orders = [place.order(tag) for tag in range(200)]
    with watched() as start, occupied(place, start):
        for order in orders:
            start(place.dispatcher.run, order)
        waits(place, len(orders))
    for order in orders:
        assert_answered(order)
    assert place.kitchen.tags[1:] == [order.task.tag for order in sorted(orders, key=_turn)]


def _turn(order: Order) -> tuple[float, int]:
    return order.key, order.sequence


def test_a_pool_of_threads_serves_more_orders_than_it_has_threads() -> None:
    place = Restaurant(AUTO, slots=2)
    orders = [place.order(tag, seconds=0.0002 * (tag % 3)) for tag in range(2000)]
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(place.dispatcher.run, order) for order in orders]:
            done.result(HANG_SECONDS)
    for order in orders:
        assert_answered(order)


# ---------------------------------------------------------------- tasks for idle slots


def idle_request(place: Restaurant) -> Order:
    """Stands for a task; its queue is known to the batcher only while it waits."""
    queue = place.queue(INLINE, COSTS)
    place.dispatcher.add_queue(queue)
    place.dispatcher.remove_queue(queue)
    return Order(queue, Task(-1), samples=1, arrived=monotonic(), priority=LOWEST_PRIORITY)


@SLOTS
def test_a_task_for_an_idle_slot_holds_it_while_it_runs(slots: int) -> None:
    place = Restaurant(AUTO, slots=slots)
    seen: list[float] = []
    for _ in range(3):
        task = partial(seen_since, place, seen)
        assert place.dispatcher.run_idle(idle_request(place), task)
        assert place.dispatcher.running_since == math.inf
    assert len(seen) == 3 and max(seen) <= monotonic()
    # The last free slot is taken: an order waits.
    beside = place.order(1, on_done=lambda _: None)
    ran: list[bool] = []

    def order_meanwhile() -> None:
        place.dispatcher.offer(beside)
        thread = threading.Thread(target=lambda: ran.append(place.dispatcher.work()))
        thread.start()
        thread.join(HANG_SECONDS)

    assert place.dispatcher.run_idle(idle_request(place), order_meanwhile)
    assert ran == [slots == 2]
    # The thread of the task has run it before it returned.
    assert_answered(beside)
    assert place.kitchen.tags == [1] and place.kitchen.dropped == []
    assert_empty(place)


def seen_since(place: Restaurant, seen: list[float]) -> None:
    seen.append(place.dispatcher.running_since)


def test_no_task_runs_while_slots_are_taken_or_requests_wait_or_come() -> None:
    place = Restaurant(AUTO, slots=1)

    def never() -> None:
        raise AssertionError("it ran")

    with watched() as start, occupied(place, start):
        assert not place.dispatcher.run_idle(idle_request(place), never)
    place.dispatcher.arrivals.received(1)
    assert not place.dispatcher.run_idle(idle_request(place), never)
    place.dispatcher.arrivals.own_queued()
    waiting = place.order(2, on_done=lambda _: None)
    place.dispatcher.offer(waiting)
    assert not place.dispatcher.run_idle(idle_request(place), never)
    assert place.dispatcher.work()
    assert_answered(waiting)
    assert place.dispatcher.run_idle(idle_request(place), lambda: None)
    assert_empty(place)


def test_a_task_that_fails_gives_its_slot_back() -> None:
    place = Restaurant(AUTO)

    def fail() -> None:
        raise Stumble("a task")

    with pytest.raises(Stumble):
        place.dispatcher.run_idle(idle_request(place), fail)
    assert place.dispatcher.running_since == math.inf
    assert place.dispatcher.run_idle(idle_request(place), lambda: None)


def test_a_request_that_is_queued_in_between_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Restaurant(AUTO)
    batcher = place.dispatcher._batcher
    offer, first = batcher.offer, place.order(3, on_done=lambda _: None)

    def offer_both(request: Order, now: float) -> None:
        offer(first, now)
        offer(request, now)

    monkeypatch.setattr(batcher, "offer", offer_both)
    ran: list[bool] = []
    assert not place.dispatcher.run_idle(idle_request(place), lambda: ran.append(True))
    assert_answered(first)
    assert ran == [] and place.kitchen.dropped == []
    assert_empty(place)


def test_deadlines_are_not_judged_by_the_queue_of_tasks() -> None:
    place = Restaurant(AUTO, costs={1: 10.0, 1024: 10.0})
    for tag in range(3):
        place.dispatcher.offer(place.order(tag, on_done=lambda _: None))
    assert place.dispatcher.deadline_unreachable_anywhere(1.0)
    idle_request(place)
    assert place.dispatcher.deadline_unreachable_anywhere(1.0)
