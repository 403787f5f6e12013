"""The compiled batcher decides as the reference does, bit for bit, and keeps every promise."""

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.abi.scheduler import State
from serving.errors import QueueFullError
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.refusals import Refusal
from serving.scheduler.scheduler import QueueLimits
from serving.scheduler.version_queue import VersionQueue
from tests.reference.batcher import Batch, Batcher
from tests.reference.cost_table import CostTable
from tests.reference.request_queue import QueuedRequest, RequestQueue
from tests.serving.scheduler.batcher_simulation import NEVER, linear, measured
from tests.support.compiled_batcher import CompiledBatcher

Queues = tuple[RequestQueue[Any], VersionQueue]
TABLES = st.dictionaries(st.integers(1, 2048), st.floats(1e-5, 1.0), min_size=1, max_size=12)


@dataclass(frozen=True, slots=True)
class Scene:
    """A server and its requests: at most `burst` come at once, every `hurry` seconds on average."""

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
    """Applies random operations to the compiled batcher and the reference, and compares each.

    Queues, requests and batches are pairs: the reference's, and the compiled twin.
    """

    def __init__(self, scene: Scene) -> None:
        self.reference: Batcher[Any] = Batcher(slots=scene.slots, limits=scene.limits)
        self.compiled = CompiledBatcher(slots=scene.slots, limits=scene.limits)
        self.now = 0.0
        self._scene = scene
        self._random = random.Random(scene.seed)
        self._queues: list[Queues] = []
        self._left: list[Queues] = []
        self._requests: list[QueuedRequest] = []
        self._twins: dict[QueuedRequest, QueuedRequest] = {}
        # Our own account of those that wait, in the order in which they came.
        self._waiting: dict[QueuedRequest, None] = {}
        self._running: list[tuple[Batch[Any], Batch[Any]]] = []
        for at in range(len(scene.policies)):
            self._add_queue(at)
        self._actions: tuple[tuple[Callable[[], object], int], ...] = (
            (self._offer, 30),
            (self._take, 30),
            (self._occupy, 2),
            (self._finish, 25),
            (self._cancel, 5),
            (self._ask, 10),
            (self._expire, 2),
            (self._change_queues, 1),
        )

    def act(self) -> None:
        choice, generator = self._actions, self._random
        self.now += generator.choice((0.0, generator.expovariate(1.0 / self._scene.hurry)))
        generator.choices([do for do, _ in choice], [weight for _, weight in choice])[0]()
        for name in ("requests", "samples", "size_bytes", "slots", "idle_slots"):
            assert getattr(self.compiled, name) == getattr(self.reference, name), name
        waiting, compiled = self._waiting, self.compiled
        assert all(request.state is State.WAITING for request in waiting)
        assert compiled.requests == len(waiting)
        assert compiled.samples == sum(request.samples for request in waiting)
        assert compiled.size_bytes == sum(request.size_bytes for request in waiting)
        assert compiled.idle_slots == compiled.slots - len(self._running)

    def check_queues(self) -> None:
        for queue, twin in self._queues + self._left:
            assert (len(twin), twin.samples) == (len(queue), queue.samples)
            assert twin.oldest_arrival() == queue.oldest_arrival()
            assert twin.due(self.now) == queue.due(self.now)
            for samples in (1, 2, 3, 7, 20, 64, 65, 270, 1024, 5000):
                self._check_costs(queue, twin, samples)

    def _check_costs(self, queue: Any, twin: VersionQueue, samples: int) -> None:
        assert twin.costs.predicted(samples) == queue.costs.predicted(samples)
        assert twin.costs.is_stale(samples, self.now) == queue.costs.is_stale(samples, self.now)

    def _check_requests(self, requests: Any, twins: Any) -> None:
        assert [self._twins[request] for request in requests] == list(twins)
        assert [request.state for request in requests] == [twin.state for twin in twins]

    def _check_dropped(self, requests: list[Any], twins: list[Any]) -> None:
        """Those of one queue, for one reason, in order."""
        assert len(requests) == len(twins)
        place = {queue: at for at, (_, queue) in enumerate(self._queues + self._left)}
        requests.sort(key=lambda r: (place[self._twins[r].queue], r.state.value))
        twins.sort(key=lambda twin: (place[twin.queue], twin.state.value))
        self._check_requests(requests, twins)

    def _both(self, name: str, *arguments: Any) -> Any:
        found = getattr(self.reference, name)(*arguments, self.now)
        assert getattr(self.compiled, name)(*arguments, self.now) == found, name
        return found

    def _add_queue(self, at: int) -> None:
        policy, table = self._scene.policies[at], self._scene.tables[at]
        queues = RequestQueue[Any](policy, CostTable(table)), VersionQueue(policy, table)
        self._queues.append(queues)
        self.reference.add_queue(queues[0])
        self.compiled.add_queue(queues[1])

    def _change_queues(self) -> None:
        generator = self._random
        if self._queues and generator.random() < 0.5:
            queues = self._queues.pop(generator.randrange(len(self._queues)))
            self.reference.remove_queue(queues[0])
            self.compiled.remove_queue(queues[1])
            self._left.append(queues)
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
            queue, twin_queue = generator.choice(queues)
            fields: dict[str, Any] = {
                "samples": generator.choice((1, 1, 8, 270, generator.randint(1, 2000))),
                "arrived": self.now - generator.choice((0.0, 0.0, generator.random() * 0.01)),
                "deadline": self._deadline() if deadline is None else deadline,
                "size_bytes": generator.randrange(2000),
                "priority": generator.choice((0, 0, 1, 2, 10, generator.randrange(13))),
            }
            request, twin = QueuedRequest(queue, **fields), QueuedRequest(twin_queue, **fields)
            refusal = self.reference.offer(request, self.now)
            assert _words(self.compiled.offer(twin, self.now)) == _words(refusal)
            if refusal is None:
                assert twin.state is request.state
                self._twins[request] = twin
                self._requests.append(request)
                self._waiting[request] = None
                self._check_limits()
            elif request.state is State.NEW:
                assert isinstance(refusal.error, QueueFullError)
                assert 0.0 < refusal.error.retry_seconds < NEVER
            else:
                assert request.deadline < NEVER

    def _check_limits(self) -> None:
        batcher, limits = self.compiled, self._scene.limits
        if batcher.requests > 1:
            assert batcher.requests <= limits.requests and batcher.samples <= limits.samples
            assert batcher.size_bytes <= limits.size_bytes

    def _take(self) -> None:
        taken, twin = self.reference.take(self.now), self.compiled.take(self.now)
        self._check_dropped(taken.dropped, twin.dropped)
        for request in taken.dropped:
            del self._waiting[request]
            is_late = request.deadline <= self.now
            assert request.state is (State.EXPIRED if is_late else State.INFEASIBLE)
        assert (taken.batch is None) == (twin.batch is None) and taken.more == twin.more
        if taken.batch is None:
            self._check_idle()
        if taken.batch is not None and twin.batch is not None:
            assert (taken.batch.queue, twin.batch.queue) in self._queues + self._left
            self._check_batch(taken.batch)
            self._check_requests(taken.batch.requests, twin.batch.requests)
            for name in ("samples", "started", "predicted"):
                assert getattr(twin.batch, name) == getattr(taken.batch, name), name
            self._running.append((taken.batch, twin.batch))

    def _check_idle(self) -> None:
        """Whoever still waits beside a free slot is in a batched queue, and not for long."""
        due = self.compiled.due(self.now)
        if self.compiled.idle_slots <= 0:
            assert due == NEVER
            return
        assert due > self.now
        first_of = {request.queue: request for request in reversed(self._waiting)}
        for queue, first in first_of.items():
            assert queue.policy.mode is BatchingMode.BATCHED
            assert self.now < due <= first.arrived + queue.policy.max_delay

    def _check_batch(self, batch: Batch[Any]) -> None:
        """Those of one queue with the smallest keys, in their order, which can be in time."""
        policy, requests = batch.queue.policy, batch.requests
        own = sorted((r for r in self._waiting if r.queue is batch.queue), key=lambda r: r.key)
        assert list(requests) == own[: len(requests)]
        if len(requests) > 1:
            assert batch.samples <= policy.max_batch and policy.mode is not BatchingMode.INLINE
        for request in requests:
            del self._waiting[request]
            assert request.state is State.RUNNING and request.deadline > self.now
        if self.now + batch.predicted > min(request.latest_end for request in requests):
            assert len(requests) == 1
            assert batch.queue.costs.is_stale(requests[0].samples, self.now)

    def _finish(self) -> None:
        generator = self._random
        if self._running:
            batch, twin = self._running.pop(generator.randrange(len(self._running)))
            seconds = batch.predicted * generator.choice((1.0, generator.uniform(0.3, 3.0), 50.0))
            ended = batch.started + seconds
            self.reference.finish(batch, ended)
            self.compiled.finish(twin, ended)
            burnt = generator.choice((None, seconds * generator.random(), 2.0 * seconds))
            for queue in (batch.queue, twin.queue):
                # `finish` takes the processor time from a clock of its own.
                queue.costs.observe(batch.samples, seconds, self.now, cpu_seconds=burnt)
            for samples in (1, batch.samples):
                self._check_costs(batch.queue, twin.queue, samples)

    def _occupy(self) -> None:
        """Takes a slot for a task, whose queue is not the batcher's."""
        policy, table = self._scene.policies[0], self._scene.tables[0]
        task = self.reference.occupy(RequestQueue[Any](policy, CostTable(table)), self.now)
        twin = self.compiled.occupy(VersionQueue(policy, table), self.now)
        assert (task is None) == (twin is None)
        if task is not None and twin is not None:
            assert not self._waiting
            self._running.append((task, twin))

    def _cancel(self) -> None:
        for _ in range(self._random.choice((1, 1, 100))):
            if self._requests:
                request = self._requests.pop(self._random.randrange(len(self._requests)))
                twin = self._twins[request]
                waited = request in self._waiting
                assert self.compiled.cancel(twin) == self.reference.cancel(request) == waited
                assert twin.state is request.state
                self._waiting.pop(request, None)

    def _expire(self) -> None:
        late = self.reference.expire(self.now)
        self._check_dropped(late, self.compiled.expire(self.now))
        for request in late:
            del self._waiting[request]

    def _ask(self) -> None:
        generator, now = self._random, self.now
        for name in ("due", "backlog", "urgent_lead", "linger_seconds"):
            self._both(name)
        for queue, twin in self._queues + self._left:
            # Clients may send any unsigned number of 64 bits.
            priority = generator.choice((generator.randrange(13), 2**64 - 1))
            asked = self._deadline(), priority, now
            found = self.reference.deadline_unreachable(queue, *asked)
            assert self.compiled.deadline_unreachable(twin, *asked) == found
        if self._queues and generator.random() < 0.3:
            queues = generator.choice(self._queues)
            samples = generator.randint(1, 500)
            for one in queues:
                one.saw(samples)


def _words(refusal: Refusal | None) -> tuple[Any, ...] | None:
    if refusal is None:
        return None
    error = refusal.error
    return refusal.reason, str(error), getattr(error, "retry_seconds", None)


@settings(max_examples=200, deadline=None)
@given(SCENES)
def test_every_decision_and_refusal_is_that_of_the_reference(scene: Scene) -> None:
    stage = Stage(scene)
    for _ in range(100):
        stage.act()
    stage.check_queues()


def test_a_queue_that_nobody_holds_is_kept_while_the_batcher_needs_it() -> None:
    batcher = CompiledBatcher()
    queue = VersionQueue(BatchingPolicy(), measured(linear))
    batcher.add_queue(queue)
    request = QueuedRequest(queue, samples=1, arrived=0.0)
    assert batcher.offer(request, 0.0) is None
    batcher.remove_queue(queue)
    batcher.calls.routes.remove(batcher.versions.pop(queue))
    kept = weakref.ref(queue)
    del queue, request.queue
    batch = batcher.take(0.0).batch
    assert batch is not None and batch.requests == (request,)
    assert kept() is batch.queue
    batcher.finish(batch, 1e-3)
    assert batcher.take(0.0).batch is None
