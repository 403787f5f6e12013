"""Requests on real threads: every one gets its own answer, in time, and nobody waits for ever."""

import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from time import monotonic, sleep
from typing import Any

import pytest

from serving.batcher import Batch, Batcher, QueueLimits
from serving.cost_table import CostTable
from serving.dispatcher import Dispatcher
from serving.job import Job
from serving.lane import Lane, LanePolicy, Mode, Ticket, TicketState
from serving.refusals import CancelledError, DeadlineError, QueueFullError

# Nothing in a test that passes takes so long.
HANG_SECONDS = 20.0
SLOTS = pytest.mark.parametrize("slots", [1, 2])
MODES = pytest.mark.parametrize("mode", list(Mode))
# What a batch costs, in seconds by samples: merging pays, so that batches wait for company.
COSTS = {1: 1e-3, 1024: 1.1e-3}


class Stumble(Exception):  # noqa: N818 - it is what a test's `execute` says
    """What a job that asks for it gets in place of a result."""


@dataclass(slots=True)
class Task:
    """What a test asks for.

    Attributes:
        tag: of the job, for its result.
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


@dataclass(slots=True)
class Kitchen:
    """An `execute`, and what it saw.

    Attributes:
        batches: tags of the jobs that ran together.
        most: batches that ran side by side, at most.
        dropped: tags and states of what left the queue.
        observed: batches that the dispatcher told of.
    """

    batches: list[list[int]] = field(default_factory=list)
    most: int = 0
    dropped: list[tuple[int, TicketState]] = field(default_factory=list)
    observed: list[Batch] = field(default_factory=list)
    _running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: threading.Condition = field(default_factory=threading.Condition)

    def execute(self, jobs: Sequence[Job]) -> Sequence[Any]:
        tasks: list[Task] = [job.work for job in jobs]
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

    def drop(self, ticket: Ticket) -> None:
        with self._lock:
            self.dropped.append((ticket.item.work.tag, ticket.state))

    def wait_for(self, tag: int) -> None:
        """Until a job has begun."""
        with self._begun:
            assert self._begun.wait_for(lambda: tag in self.tags, HANG_SECONDS), f"{tag} not begun"

    @property
    def tags(self) -> list[int]:
        return [tag for batch in self.batches for tag in batch]


class Restaurant:
    """A dispatcher over a kitchen, with one lane unless there are more."""

    def __init__(
        self,
        *policies: LanePolicy,
        slots: int = 1,
        limits: QueueLimits | None = None,
        costs: dict[int, float] | None = None,
    ) -> None:
        self.kitchen = Kitchen()
        self.dispatcher = Dispatcher(
            Batcher(slots=slots, limits=limits),
            self.kitchen.execute,
            observe=self.kitchen.observe,
            on_waiting=lambda _: None,
            on_dropped=self.kitchen.drop,
        )
        self.lanes = [Lane(policy, CostTable(costs or COSTS)) for policy in policies]
        for lane in self.lanes:
            self.dispatcher.add_lane(lane)

    def job(
        self,
        tag: int,
        *,
        samples: int = 1,
        seconds_left: float = math.inf,
        age: float = 0.0,
        lane: int = 0,
        on_done: Callable[[Job], None] | None = None,
        **task: Any,
    ) -> Job:
        now = monotonic()
        ticket = Ticket(
            self.lanes[lane], samples=samples, arrived=now - age, deadline=now + seconds_left
        )
        return Job(Task(tag, **task), ticket, on_done)


AUTO = LanePolicy()
INLINE = LanePolicy(Mode.INLINE)


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


def assert_answered(job: Job) -> None:
    """It has its own result, or its own exception if it asked for one."""
    task: Task = job.work
    if task.fails:
        assert job.result is None
        assert isinstance(job.error, Stumble) and job.error.args == (task.tag,)
    else:
        assert job.error is None, job.error
        assert job.result == ("answer", task.tag)


def assert_empty(place: Restaurant) -> None:
    assert place.dispatcher.waiting == (0, 0)
    assert place.dispatcher.due() == math.inf


# ---------------------------------------------------------------- every job its own answer


@SLOTS
@MODES
def test_every_thread_that_waits_gets_its_own_answer(mode: Mode, slots: int) -> None:
    place = Restaurant(LanePolicy(mode, 64, 0.002), slots=slots)
    done: list[list[Job]] = [[] for _ in range(64)]

    def client(number: int) -> None:
        generator = random.Random(number)
        for turn in range(20):
            job = place.job(
                100 * number + turn,
                samples=generator.choice([1, 1, 2, 7, 30, 100]),
                fails=generator.random() < 0.1,
                seconds=generator.choice([0.0, 0.0, 0.0005]),
            )
            place.dispatcher.run(job)
            done[number].append(job)

    with watched() as start:
        for number in range(64):
            start(client, number)
    jobs = [job for mine in done for job in mine]
    assert len(jobs) == 64 * 20
    for job in jobs:
        assert_answered(job)
    assert sorted(place.kitchen.tags) == sorted(job.work.tag for job in jobs), "each runs once"
    assert len(place.kitchen.observed) == len(place.kitchen.batches)
    assert 1 <= place.kitchen.most <= slots
    together = max(len(batch) for batch in place.kitchen.batches)
    assert together == 1 if mode is Mode.INLINE else together > 1
    assert_empty(place)


class Waiters:
    """Threads that bring offered jobs and work, as a transport's do, until they are told to end."""

    def __init__(self, place: Restaurant, threads: int, start: Callable[..., object]) -> None:
        self._dispatcher = place.dispatcher
        self._orders: list[Job] = []
        self._lock = threading.Lock()
        self._open = True
        for _ in range(threads):
            start(self._serve)

    def bring(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            self._orders.extend(jobs)

    def close(self) -> None:
        self._open = False

    def _serve(self) -> None:
        while self._open:
            with self._lock:
                # Never more than may wait.
                few = 5 if self._dispatcher.waiting[0] < 500 else 0
                jobs, self._orders = self._orders[:few], self._orders[few:]
            for job in jobs:
                self._dispatcher.offer(job)
            self._dispatcher.expire()
            if not self._dispatcher.work() and not jobs:
                sleep(max(0.0, min(0.001, self._dispatcher.due() - monotonic())))


@SLOTS
@MODES
def test_every_offered_job_is_answered_once(mode: Mode, slots: int) -> None:
    place = Restaurant(LanePolicy(mode, 64, 0.002), slots=slots)
    told: Counter[int] = Counter()
    counting = threading.Lock()

    def done(job: Job) -> None:
        with counting:
            told[job.work.tag] += 1

    generator = random.Random(1)
    jobs = [
        place.job(
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
        waiters.bring(jobs)
        wait_until(lambda: told.total() >= len(jobs), "everybody has an answer")
        waiters.close()
    assert told == Counter(range(len(jobs)))
    for job in jobs:
        assert_answered(job)
    assert sorted(place.kitchen.tags) == list(range(len(jobs)))
    assert 1 <= place.kitchen.most <= slots
    assert_empty(place)


@SLOTS
def test_both_ways_of_use_go_together(slots: int) -> None:
    place = Restaurant(AUTO, INLINE, LanePolicy(Mode.BATCHED, 64, 0.002), slots=slots)
    told: Counter[int] = Counter()
    counting = threading.Lock()

    def done(job: Job) -> None:
        with counting:
            told[job.work.tag] += 1

    offered = [
        place.job(10_000 + tag, samples=1 + tag % 5, lane=tag % 3, on_done=done)
        for tag in range(600)
    ]
    waited: list[Job] = []

    def client(number: int) -> None:
        for turn in range(30):
            job = place.job(100 * number + turn, samples=1 + turn % 3, lane=turn % 3)
            place.dispatcher.run(job)
            waited.append(job)

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
    for job in (*offered, *waited):
        assert_answered(job)
    assert_empty(place)


def test_a_thread_that_leaves_runs_what_was_offered_and_nobody_waits_for() -> None:
    place = Restaurant(AUTO)
    gate, answered = threading.Event(), threading.Event()
    with watched() as start:
        start(place.dispatcher.run, place.job(1, gate=gate))
        place.kitchen.wait_for(1)
        offered = place.job(2, on_done=lambda _: answered.set())
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
            start(place.dispatcher.run, place.job(number, seconds=0.02))
    assert place.kitchen.most == slots
    assert sorted(place.kitchen.tags) == list(range(12))


def test_a_batch_that_is_ready_takes_every_slot_that_is_free() -> None:
    place = Restaurant(INLINE, slots=2)
    first, second = threading.Event(), threading.Event()
    # Both slots become free before either of the two that wait has woken up; they end together
    # only if they run side by side.
    both = threading.Barrier(2)
    execute = place.kitchen.execute

    def meet(jobs: Sequence[Job]) -> Sequence[Any]:
        if jobs[0].work.tag in (3, 4):
            both.wait(5.0)
        return execute(jobs)

    for _ in range(50):
        place.dispatcher._execute = meet
        first.clear()
        second.clear()
        jobs = [place.job(3), place.job(4)]
        with watched() as start:
            start(place.dispatcher.run, place.job(1, gate=first))
            start(place.dispatcher.run, place.job(2, gate=second))
            wait_until(lambda: place.kitchen._running == 2, "two run")
            for job in jobs:
                start(place.dispatcher.run, job)
            waits(place, 2)
            first.set()
            second.set()
        assert [job.error for job in jobs] == [None, None]


# ---------------------------------------------------------------- exceptions


def together(place: Restaurant, *jobs: Job) -> None:
    """Runs jobs so that they are one batch: they wait while another runs."""
    gate, before = threading.Event(), -1 - len(place.kitchen.batches)
    with watched() as start:
        start(place.dispatcher.run, place.job(before, gate=gate))
        place.kitchen.wait_for(before)
        for job in jobs:
            start(place.dispatcher.run, job)
        waits(place, len(jobs))
        gate.set()
    assert sorted(place.kitchen.batches[-1]) == sorted(job.work.tag for job in jobs)


def test_an_exception_of_one_job_does_not_touch_its_mates() -> None:
    place = Restaurant(AUTO)
    jobs = [place.job(tag, fails=tag == 2) for tag in range(5)]
    together(place, *jobs)
    for job in jobs:
        assert_answered(job)


def test_an_execute_that_raises_fails_its_jobs_and_the_next_ones_are_answered() -> None:
    place = Restaurant(AUTO)
    jobs = [place.job(tag, breaks=tag == 2) for tag in range(5)]
    together(place, *jobs)
    for job in jobs:
        assert job.result is None
        assert isinstance(job.error, Stumble) and job.error.args == ("batch of 2",)
    after = [place.job(tag) for tag in range(10, 15)]
    together(place, *after)
    for job in after:
        assert_answered(job)
    assert_empty(place)


def test_an_answer_that_cannot_be_told_does_not_keep_its_mates_from_theirs() -> None:
    place = Restaurant(AUTO)
    told: list[int] = []

    def done(job: Job) -> None:
        if job.work.tag == 1:
            raise Stumble("the client's connection")
        told.append(job.work.tag)

    jobs = [place.job(tag, on_done=done) for tag in range(4)]
    for job in jobs:
        place.dispatcher.offer(job)
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
    place: Restaurant, start: Callable[..., object], *, lane: int = 0
) -> Iterator[threading.Event]:
    """A batch runs, and takes the one slot until the event is set or the block ends."""
    gate = threading.Event()
    start(place.dispatcher.run, place.job(-1, gate=gate, lane=lane))
    place.kitchen.wait_for(-1)
    try:
        yield gate
    finally:
        gate.set()


def test_a_job_that_is_cancelled_while_it_waits_is_not_run() -> None:
    place = Restaurant(AUTO)
    jobs = [place.job(tag) for tag in range(3)]
    with watched() as start, occupied(place, start):
        threads = [start(place.dispatcher.run, job) for job in jobs]
        waits(place, 3)
        place.dispatcher.cancel(jobs[1])
        # Its thread leaves while the batch still runs.
        threads[1].join(HANG_SECONDS)
        assert not threads[1].is_alive() and place.dispatcher.waiting[0] == 2
        assert isinstance(jobs[1].error, CancelledError) and jobs[1].result is None
    assert 1 not in place.kitchen.tags
    assert place.kitchen.dropped == [(1, TicketState.WITHDRAWN)]
    assert_answered(jobs[0])
    assert_answered(jobs[2])


def test_an_offered_job_that_is_cancelled_is_told_once() -> None:
    place = Restaurant(AUTO)
    told: list[Job] = []
    job = place.job(1, on_done=told.append)
    place.dispatcher.offer(job)
    place.dispatcher.cancel(job)
    place.dispatcher.cancel(job)
    assert told == [job] and isinstance(job.error, CancelledError)
    assert not place.dispatcher.work()
    assert_empty(place)


def test_a_job_that_runs_or_has_run_is_not_disturbed_by_a_cancel() -> None:
    place = Restaurant(AUTO)
    job = place.job(1, gate=threading.Event())
    with watched() as start:
        start(place.dispatcher.run, job)
        place.kitchen.wait_for(1)
        place.dispatcher.cancel(job)
        job.work.gate.set()
    place.dispatcher.cancel(job)
    assert_answered(job)
    assert place.kitchen.dropped == []


def test_a_deadline_that_passes_while_a_long_batch_runs_is_told_before_it_ends() -> None:
    place = Restaurant(AUTO)
    waited = place.job(1, seconds_left=0.5)
    with watched() as start, occupied(place, start):
        thread = start(place.dispatcher.run, waited)
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
        assert isinstance(waited.error, DeadlineError) and "while it waited" in str(waited.error)
        assert place.dispatcher.waiting == (0, 0)
    assert place.kitchen.dropped == [(1, TicketState.EXPIRED)]
    assert place.kitchen.tags == [-1]


def test_offered_jobs_whose_deadlines_pass_are_told_when_somebody_looks() -> None:
    place = Restaurant(AUTO)
    told: list[Job] = []
    short, lasting = (
        place.job(tag, seconds_left=left, on_done=told.append) for tag, left in ((1, 0.5), (2, 60))
    )
    with watched() as start, occupied(place, start):
        for job in (short, lasting):
            place.dispatcher.offer(job)
        place.dispatcher.expire()
        assert told == []
        sleep(0.6)
        place.dispatcher.expire()
        assert told == [short] and isinstance(short.error, DeadlineError)
        assert place.kitchen.dropped == [(1, TicketState.EXPIRED)]
        assert place.dispatcher.waiting == (1, 1)
    place.dispatcher.work()
    assert_answered(lasting)


def test_a_job_that_waited_until_it_cannot_be_in_time_any_more_is_dropped_and_told() -> None:
    place = Restaurant(AUTO, costs={1: 0.6})
    job = place.job(1, seconds_left=1.8)
    with watched() as start, occupied(place, start):
        start(place.dispatcher.run, job)
        waits(place, 1)
        sleep(1.4)
        # Its size has been seen just now: what it costs is known.
        place.lanes[0].costs.observe(1, 0.6, monotonic())
        assert not job.done
    assert isinstance(job.error, DeadlineError) and "its turn came" in str(job.error)
    assert place.kitchen.dropped == [(1, TicketState.INFEASIBLE)]


def test_a_refused_job_is_raised_and_leaves_nothing_behind() -> None:
    place = Restaurant(AUTO, limits=QueueLimits(requests=2))
    told: list[Job] = []
    with watched() as start, occupied(place, start):
        jobs = [place.job(tag, on_done=told.append) for tag in range(2)]
        for job in jobs:
            place.dispatcher.offer(job)
        for refused in (place.job(7), place.job(8, on_done=told.append)):
            way = place.dispatcher.run if refused.on_done is None else place.dispatcher.offer
            with pytest.raises(QueueFullError) as full:
                way(refused)
            assert full.value.retry_seconds > 0
            assert refused.ticket.state is TicketState.NEW
        for late in (place.job(9, seconds_left=-1.0), place.job(10, seconds_left=0.0)):
            with pytest.raises(DeadlineError, match="had passed"):
                place.dispatcher.run(late)
        assert place.dispatcher.waiting == (2, 2)
        assert told == [] and place.kitchen.dropped == []
    wait_until(lambda: len(told) == 2, "two answers")
    for job in jobs:
        assert_answered(job)
    assert not {7, 8, 9, 10} & set(place.kitchen.tags)
    assert_empty(place)


def test_a_refused_request_is_not_on_its_way_any_more() -> None:
    place = Restaurant(AUTO)
    place.dispatcher.arrivals.announce()
    place.dispatcher.arrivals.begin()
    with pytest.raises(DeadlineError):
        place.dispatcher.run(place.job(1, seconds_left=-1.0))
    assert place.dispatcher.arrivals.coming == 0


# ---------------------------------------------------------------- batched lanes


def batched(max_delay: float, max_batch: int = 8) -> LanePolicy:
    return LanePolicy(Mode.BATCHED, max_batch, max_delay)


def test_a_batched_job_waits_the_delay_for_others() -> None:
    place = Restaurant(batched(1.0))
    job = place.job(1)
    started = monotonic()
    with watched() as start:
        start(place.dispatcher.run, job)
        sleep(0.05)
        start(place.dispatcher.run, place.job(2))
    assert_answered(job)
    assert job.started - started >= 0.99
    assert place.kitchen.batches == [[1, 2]]


def test_a_full_batch_wakes_those_who_wait_for_the_delay() -> None:
    place = Restaurant(batched(10 * HANG_SECONDS))
    with watched() as start:
        for tag in range(7):
            start(place.dispatcher.run, place.job(tag))
        waits(place, 7)
        assert place.kitchen.batches == []
        start(place.dispatcher.run, place.job(7))
    assert [sorted(batch) for batch in place.kitchen.batches] == [list(range(8))]


def test_a_batch_is_filled_while_another_runs() -> None:
    place = Restaurant(batched(10 * HANG_SECONDS), INLINE)
    with watched() as start, occupied(place, start, lane=1):
        for tag in range(8):
            start(place.dispatcher.run, place.job(tag))
        waits(place, 8)
    assert [sorted(batch) for batch in place.kitchen.batches] == [[-1], list(range(8))]


def test_a_batched_job_whose_delay_ends_as_it_comes_is_run() -> None:
    # The delay may end between two looks at the clock: nobody else would come to wake it up.
    place = Restaurant(batched(0.01))
    generator = random.Random(3)
    ages = [0.01 - generator.uniform(0.0, 60e-6) for _ in range(2000)]
    jobs = []

    def client() -> None:
        for tag, age in enumerate(ages):
            jobs.append(place.job(tag, age=age))
            place.dispatcher.run(jobs[-1])

    with watched() as start:
        start(client)
    assert len(jobs) == len(ages)
    for job in jobs:
        assert_answered(job)


def test_a_batched_job_is_run_though_the_one_it_was_to_go_with_is_cancelled() -> None:
    # The first has waited long enough, so the batch waits only for the slot; without it, the batch
    # is due later than the slot is free.
    place = Restaurant(batched(1.0), INLINE)
    first, second = place.job(1, age=5.0), place.job(2)
    with watched(10.0) as start, occupied(place, start, lane=1) as gate:
        for job in (first, second):
            start(place.dispatcher.run, job)
        waits(place, 2)
        sleep(0.05)
        place.dispatcher.cancel(first)
        gate.set()
    assert isinstance(first.error, CancelledError)
    assert_answered(second)


def test_those_who_are_left_over_from_a_full_batch_are_run_when_they_have_waited() -> None:
    # They came when the batch was full, and waited only for the slot; then they are too few.
    place = Restaurant(batched(1.0), INLINE)
    jobs = [place.job(tag) for tag in range(11)]
    with watched(10.0) as start, occupied(place, start, lane=1):
        for number, job in enumerate(jobs):
            start(place.dispatcher.run, job)
            waits(place, number + 1)
        sleep(0.05)
    for job in jobs:
        assert_answered(job)
    assert [len(batch) for batch in place.kitchen.batches] == [1, 8, 3]


def test_a_batched_job_waits_no_longer_than_its_deadline_allows() -> None:
    place = Restaurant(batched(10 * HANG_SECONDS), costs={1: 1.0})
    job = place.job(1, seconds_left=1.5)
    with watched() as start:
        start(place.dispatcher.run, job)
    assert_answered(job)


def test_what_is_due_and_what_waits_is_said() -> None:
    place = Restaurant(batched(10.0), AUTO, slots=2)
    dispatcher = place.dispatcher
    assert dispatcher.slots == 2
    assert_empty(place)
    waiting = place.job(1, samples=3, on_done=lambda _: None)
    dispatcher.offer(waiting)
    assert dispatcher.waiting == (1, 3)
    assert dispatcher.due() == waiting.ticket.arrived + 10.0
    assert not dispatcher.work(), "it is not due"
    other = place.job(2, samples=4, lane=1, on_done=lambda _: None)
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
        job = place.job(1, on_done=lambda _: None)
        place.dispatcher.offer(job)
        assert place.dispatcher.due() == math.inf
        assert not place.dispatcher.work()
    place.dispatcher.work()
    assert_answered(job)


# ---------------------------------------------------------------- company


def test_a_batch_waits_for_those_on_their_way_and_takes_them_along() -> None:
    place = Restaurant(AUTO, costs={1: 0.5, 1024: 0.51})
    dispatcher = place.dispatcher
    met = 0
    for turn in range(20):
        dispatcher.arrivals.announce(2)

        def bring(tag: int) -> None:
            dispatcher.arrivals.begin()
            dispatcher.run(place.job(tag))

        with watched() as start:
            start(bring, 2 * turn)
            start(bring, 2 * turn + 1)
        met += len(place.kitchen.batches[-1]) == 2
    assert dispatcher.arrivals.coming == 0
    assert sorted(place.kitchen.tags) == list(range(40))
    assert met > 0, "they never went together"


def test_a_request_that_never_comes_holds_nobody_up_for_long() -> None:
    place = Restaurant(AUTO, costs={1: 10.0, 1024: 10.1})
    place.dispatcher.arrivals.announce()
    started = monotonic()
    with watched() as start:
        start(place.dispatcher.run, place.job(1))
    assert monotonic() - started < 5.0
    assert place.dispatcher.arrivals.coming == 0, "it is late"


# ---------------------------------------------------------------- nothing is lost


@SLOTS
@MODES
def test_no_wake_up_is_lost(mode: Mode, slots: int) -> None:
    # Leaders leave at all moments, deadlines pass, clients go away, batches fill; whoever waits for
    # a wake-up that never comes hangs.
    place = Restaurant(LanePolicy(mode, 6, 0.0005), LanePolicy(Mode.AUTO), slots=slots)
    dispatcher = place.dispatcher
    tags = count()
    fates: Counter[str] = Counter()
    ended: list[Job] = []
    stop = monotonic() + 1.5

    def client(number: int) -> None:
        generator = random.Random(number)
        while monotonic() < stop:
            pressing = generator.random() < 0.2
            job = place.job(
                next(tags),
                samples=generator.choice([1, 1, 2, 5]),
                lane=generator.random() < 0.2,
                age=generator.choice([0.0, generator.uniform(0.0, 0.0006)]),
                seconds_left=generator.uniform(0.0005, 0.02) if pressing else math.inf,
                seconds=generator.choice([0.0, 0.0, 0.0, 0.0003, 0.002]),
            )
            if generator.random() < 0.1:
                threading.Timer(generator.uniform(0.0, 0.004), dispatcher.cancel, (job,)).start()
            dispatcher.arrivals.announce()
            dispatcher.arrivals.begin()
            try:
                dispatcher.run(job)
            except DeadlineError:
                fates["refused"] += 1
                continue
            ended.append(job)
            if generator.random() < 0.5:
                sleep(generator.choice([0.0, 0.0001, 0.001, 0.003]))

    with watched(1.5 + HANG_SECONDS) as start:
        for number in range(24):
            start(client, number)
    for job in ended:
        assert job.done
        fates[type(job.error).__name__] += 1
        if job.error is None:
            assert job.result == ("answer", job.work.tag)
        else:
            assert isinstance(job.error, (DeadlineError, CancelledError)), job.error
    ran = set(place.kitchen.tags)
    assert len(ran) == len(place.kitchen.tags), "a job ran twice"
    assert ran == {job.work.tag for job in ended if job.error is None}
    assert len(place.kitchen.dropped) == sum(job.error is not None for job in ended)
    assert fates["NoneType"] > 300 and dispatcher.arrivals.coming == 0
    assert 1 <= place.kitchen.most <= slots
    assert_empty(place)


def test_the_thread_of_the_last_answer_hands_on_to_those_who_wait() -> None:
    # One after another: each leader has its own answer after one batch, and goes.
    place = Restaurant(INLINE)
    jobs = [place.job(tag) for tag in range(200)]
    with watched() as start, occupied(place, start):
        for job in jobs:
            start(place.dispatcher.run, job)
        waits(place, len(jobs))
    for job in jobs:
        assert_answered(job)
    assert place.kitchen.tags[1:] == [job.work.tag for job in sorted(jobs, key=_turn)]


def _turn(job: Job) -> tuple[float, int]:
    return job.ticket.key, job.ticket.sequence


def test_a_pool_of_threads_serves_more_jobs_than_it_has_threads() -> None:
    place = Restaurant(AUTO, slots=2)
    jobs = [place.job(tag, seconds=0.0002 * (tag % 3)) for tag in range(2000)]
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(place.dispatcher.run, job) for job in jobs]:
            done.result(HANG_SECONDS)
    for job in jobs:
        assert_answered(job)
