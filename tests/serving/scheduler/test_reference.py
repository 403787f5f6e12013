"""The compiled batcher decides as the reference does, bit for bit, whatever happens."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import DeadlineError, QueueFullError
from serving.scheduler.batcher import Batch, QueueLimits
from serving.scheduler.queued_request import BatchingMode, BatchingPolicy
from serving.scheduler.version_queue import VersionQueue
from tests.reference.cost_table import CostTable
from tests.reference.request_queue import OrderedRequest
from tests.serving.scheduler.batcher_simulation import NEVER, linear, measured
from tests.serving.scheduler.twin_batcher import TwinBatcher, TwinQueue

TABLES = st.dictionaries(st.integers(1, 2048), st.floats(1e-5, 1.0), min_size=1, max_size=12)


@dataclass(frozen=True, slots=True)
class Scene:
    """A server and its requests.

    Attributes:
        tables: initial cost tables of the queues.
        burst: the most requests that come at once.
        hurry: seconds between two steps, on average.
    """

    seed: int
    slots: int
    limits: QueueLimits
    policies: list[BatchingPolicy]
    tables: list[dict[int, float]]
    burst: int
    hurry: float


SCENES = st.builds(
    Scene,
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 4),
    limits=st.builds(
        QueueLimits,
        requests=st.sampled_from((3, 200, 20_000)),
        samples=st.sampled_from((1000, 2**20)),
        size_bytes=st.sampled_from((20_000, 2**28)),
    ),
    policies=st.lists(
        st.builds(
            BatchingPolicy,
            mode=st.sampled_from(BatchingMode),
            max_batch=st.sampled_from((1, 8, 64, 1024)),
            max_delay=st.sampled_from((0.0, 0.001, 0.3)),
            device_slots=st.sampled_from((0, 0, 0, 1, 3)),
        ),
        min_size=1,
        max_size=4,
    ),
    tables=st.lists(TABLES, min_size=4, max_size=4),
    burst=st.sampled_from((1, 5, 300)),
    hurry=st.sampled_from((1e-5, 1e-3, 0.05, 2.0)),
)


class Stage:
    """Applies random operations to a batcher and its twin, which compares each."""

    def __init__(self, scene: Scene) -> None:
        self.batcher = TwinBatcher(slots=scene.slots, limits=scene.limits)
        self.now = 0.0
        self.done = 0
        self._scene = scene
        self._random = random.Random(scene.seed)
        self._queues: list[TwinQueue] = []
        self._left: list[TwinQueue] = []
        self._requests: list[OrderedRequest] = []
        self._running: list[Batch[Any]] = []
        for at in range(len(scene.policies)):
            self._add_queue(at)
        self._actions: tuple[tuple[Callable[[], object], int], ...] = (
            (self._offer, 30),
            (self._take, 30),
            (self._finish, 25),
            (self._cancel, 5),
            (self._ask, 10),
            (lambda: self.batcher.expire(self.now), 2),
            (self._change_queues, 1),
        )

    def act(self) -> None:
        choice, generator = self._actions, self._random
        self.now += generator.choice((0.0, generator.expovariate(1.0 / self._scene.hurry)))
        generator.choices([do for do, _ in choice], [weight for _, weight in choice])[0]()
        self.done += 1

    def check(self) -> None:
        for queue in self._queues + self._left:
            queue.check(self.now)

    def _add_queue(self, at: int) -> None:
        queue = TwinQueue(self._scene.policies[at], self._scene.tables[at])
        self._queues.append(queue)
        self.batcher.add_queue(queue)

    def _change_queues(self) -> None:
        generator = self._random
        if self._queues and generator.random() < 0.5:
            queue = self._queues.pop(generator.randrange(len(self._queues)))
            self.batcher.remove_queue(queue)
            self._left.append(queue)
        else:
            self._add_queue(generator.randrange(len(self._scene.policies)))

    def _deadline(self) -> float:
        generator = self._random
        spans = (NEVER, 0.0, -0.1, 10 ** generator.uniform(-5, 1), 0.5)
        return self.now + generator.choice(spans)

    def _offer(self) -> None:
        generator = self._random
        deadline = self._deadline() if generator.random() < 0.3 else None
        for _ in range(generator.randint(1, self._scene.burst)):
            # A request may still come for a version that is being unloaded.
            queues = self._left if generator.random() < 0.05 else self._queues
            if not queues:
                return
            request = OrderedRequest(
                generator.choice(queues),
                samples=generator.choice((1, 1, 8, 270, generator.randint(1, 2000))),
                arrived=self.now - generator.choice((0.0, 0.0, generator.random() * 0.01)),
                deadline=self._deadline() if deadline is None else deadline,
                size_bytes=generator.randrange(2000),
                priority=generator.choice((0, 0, 1, 2, 10, generator.randrange(13))),
            )
            with suppress(DeadlineError, QueueFullError):
                self.batcher.offer(request, self.now)
                self._requests.append(request)

    def _take(self) -> None:
        batch = self.batcher.take(self.now).batch
        if batch is not None:
            self._running.append(batch)

    def _finish(self) -> None:
        generator = self._random
        if self._running:
            batch = self._running.pop(generator.randrange(len(self._running)))
            seconds = batch.predicted * generator.choice((1.0, generator.uniform(0.3, 3.0), 50.0))
            burnt = generator.choice((None, seconds, seconds * generator.random(), 2.0 * seconds))
            self.batcher.finish(batch, seconds=seconds, now=self.now, cpu_seconds=burnt)

    def _cancel(self) -> None:
        for _ in range(self._random.choice((1, 1, 100))):
            if self._requests:
                at = self._random.randrange(len(self._requests))
                self.batcher.cancel(self._requests.pop(at))

    def _ask(self) -> None:
        batcher, generator, now = self.batcher, self._random, self.now
        batcher.due(now)
        batcher.next_request(now)
        batcher.backlog(now)
        batcher.urgent_lead(now)
        batcher.linger_seconds(now)
        for queue in self._queues + self._left:
            # Clients may send any unsigned number of 64 bits.
            priority = generator.choice((generator.randrange(13), 2**64 - 1))
            batcher.deadline_unreachable(queue, self._deadline(), priority, now)
        if self._queues and generator.random() < 0.3:
            generator.choice(self._queues).saw(generator.randint(1, 500))


@settings(max_examples=200, deadline=None)
@given(SCENES)
def test_every_decision_and_refusal_is_that_of_the_reference(scene: Scene) -> None:
    stage = Stage(scene)
    for _ in range(100):
        stage.act()
    stage.check()


def test_thousands_of_steps_with_hundreds_waiting_leave_no_difference() -> None:
    policies = [BatchingPolicy(mode, 64, 0.01) for mode in BatchingMode]
    tables = [{1: 1e-3, 64: 2e-3}, {1: 1e-4, 8: 3e-4, 64: 5e-4}, {4: 1e-3}]
    stage = Stage(Scene(1, 2, QueueLimits(requests=20_000), policies, tables, 60, 1e-4))
    most = 0
    for _ in range(3000):
        stage.act()
        most = max(most, stage.batcher.requests)
    stage.check()
    assert most > 1000, "few waited"


@given(
    TABLES,
    st.lists(
        st.tuples(st.integers(1, 5000), st.floats(1e-6, 10.0), st.none() | st.floats(1e-6, 10.0)),
        max_size=30,
    ),
    st.floats(0.0, 0.7),
)
def test_a_compiled_table_learns_what_the_reference_learns(
    table: dict[int, float], timings: list[tuple[int, float, float | None]], gap: float
) -> None:
    costs, compiled = CostTable(table), VersionQueue(BatchingPolicy(), table).costs
    for number, (samples, seconds, cpu_seconds) in enumerate(timings):
        now = gap * number
        costs.observe(samples, seconds, now, cpu_seconds=cpu_seconds)
        compiled.observe(samples, seconds, now, cpu_seconds=cpu_seconds)
        for size in (1, 2, samples - 1 or 1, samples, samples + 1, 4000):
            assert compiled.predicted(size) == costs.predicted(size)
            assert compiled.is_stale(size, now + 1.5 * gap) == costs.is_stale(size, now + 1.5 * gap)


def test_a_queue_that_nobody_holds_is_kept_while_the_batcher_needs_it() -> None:
    batcher = TwinBatcher()
    queue = TwinQueue(BatchingPolicy(), measured(linear))
    batcher.add_queue(queue)
    request = OrderedRequest(queue, samples=1, arrived=0.0)
    batcher.offer(request, 0.0)
    batcher.remove_queue(queue)
    del queue
    batch = batcher.take(0.0).batch
    assert batch is not None and batch.requests == (request,)
    batcher.finish(batch, seconds=1e-3, now=0.0)
    assert batcher.take(0.0).batch is None
