"""Both batchers at once: the compiled one must decide as the reference does, bit for bit."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from serving.errors import DeadlineError, QueueFullError
from serving.scheduler.batcher import Batch, Batcher, QueueLimits, Taken
from serving.scheduler.queued_request import BatchingPolicy, QueuedRequest
from serving.scheduler.version_queue import VersionQueue
from tests.reference.batcher import Batcher as ReferenceBatcher
from tests.reference.cost_table import CostTable
from tests.reference.request_queue import OrderedRequest, RequestQueue

# At these, predictions are compared.
_SIZES = (1, 2, 3, 7, 20, 64, 65, 270, 1024, 5000)


class TwinQueue(RequestQueue[Any]):
    """A queue of the reference with its compiled twin."""

    def __init__(self, policy: BatchingPolicy, measured: Mapping[int, float]) -> None:
        super().__init__(policy, CostTable(measured))
        self.offering = False
        self.compiled = VersionQueue(policy, measured)

    def saw(self, samples: int) -> None:
        super().saw(samples)
        # While a request is offered, compiled code sees it by itself.
        if not self.offering:
            self.compiled.saw(samples)

    def check(self, now: float) -> None:
        compiled = self.compiled
        assert (len(compiled), compiled.samples) == (len(self), self.samples)
        assert compiled.oldest_arrival() == self.oldest_arrival()
        assert compiled.due(now) == self.due(now)
        self.check_costs(now, *_SIZES)

    def check_costs(self, now: float, *sizes: int) -> None:
        compiled = self.compiled
        for samples in sizes:
            assert compiled.costs.predicted(samples) == self.costs.predicted(samples)
            assert compiled.costs.is_stale(samples, now) == self.costs.is_stale(samples, now)


class TwinBatcher(ReferenceBatcher[Any]):
    """The reference, beside which the compiled batcher decides; its queues are `TwinQueue`s."""

    def __init__(self, *, slots: int = 1, limits: QueueLimits | None = None) -> None:
        super().__init__(slots=slots, limits=limits)
        self.compiled: Batcher[Any] = Batcher(slots=slots, limits=limits)
        self._twins: dict[OrderedRequest, QueuedRequest] = {}
        self._twin_batches: dict[Batch[Any], Batch[Any]] = {}

    def add_queue(self, queue: Any) -> None:
        super().add_queue(queue)
        self.compiled.add_queue(queue.compiled)
        self._check_counters()

    def remove_queue(self, queue: Any) -> None:
        super().remove_queue(queue)
        self.compiled.remove_queue(queue.compiled)
        self._check_counters()

    def offer(self, request: OrderedRequest, now: float) -> None:
        twin = QueuedRequest(
            request.queue.compiled,
            samples=request.samples,
            arrived=request.arrived,
            deadline=request.deadline,
            size_bytes=request.size_bytes,
            priority=request.priority,
        )
        request.queue.offering = True
        refusal = _refusal(super().offer, request, now)
        request.queue.offering = False
        twin_refusal = _refusal(self.compiled.offer, twin, now)
        assert twin.state is request.state
        self._check_counters()
        if refusal is None:
            assert twin_refusal is None
            self._twins[request] = twin
        else:
            _raise_alike(refusal, twin_refusal)

    def deadline_unreachable(self, queue: Any, deadline: float, priority: int, now: float) -> bool:
        answer = super().deadline_unreachable(queue, deadline, priority, now)
        twin = self.compiled.deadline_unreachable(queue.compiled, deadline, priority, now)
        assert twin == answer
        return answer

    def backlog(self, now: float) -> float:
        seconds = super().backlog(now)
        assert self.compiled.backlog(now) == seconds
        return seconds

    def urgent_lead(self, now: float) -> float:
        seconds = super().urgent_lead(now)
        assert self.compiled.urgent_lead(now) == seconds
        return seconds

    def take(self, now: float) -> Taken[Any]:
        taken, twin = super().take(now), self.compiled.take(now)
        self._check_requests(taken.dropped, twin.dropped)
        self._check_counters()
        if taken.batch is None:
            assert twin.batch is None
            return taken
        assert twin.batch is not None
        assert twin.batch.queue is taken.batch.queue.compiled  # type: ignore[attr-defined]
        self._check_requests(taken.batch.requests, twin.batch.requests)
        assert twin.batch.samples == taken.batch.samples
        assert twin.batch.started == taken.batch.started
        assert twin.batch.predicted == taken.batch.predicted
        self._twin_batches[taken.batch] = twin.batch
        return taken

    def next_request(self, now: float) -> Any:
        request = super().next_request(now)
        assert self.compiled.is_ready(now) == (request is not None)
        return request

    def linger_seconds(self, now: float) -> float:
        seconds = super().linger_seconds(now)
        assert self.compiled.linger_seconds(now) == seconds
        return seconds

    def due(self, now: float) -> float:
        when = super().due(now)
        assert self.compiled.due(now) == when
        return when

    def finish(
        self, batch: Batch[Any], *, seconds: float, now: float, cpu_seconds: float | None = None
    ) -> None:
        super().finish(batch, seconds=seconds, now=now, cpu_seconds=cpu_seconds)
        twin = self._twin_batches.pop(batch)
        self.compiled.finish(twin, seconds=seconds, now=now, cpu_seconds=cpu_seconds)
        self._check_counters()
        queue: Any = batch.queue
        queue.check_costs(now, 1, batch.samples)

    def cancel(self, request: OrderedRequest) -> bool:
        waited = super().cancel(request)
        twin = self._twins.get(request)
        if twin is None:
            assert not waited
            return False
        assert self.compiled.cancel(twin) == waited and twin.state is request.state
        self._check_counters()
        return waited

    def expire(self, now: float) -> list[Any]:
        late = super().expire(now)
        self._check_requests(late, self.compiled.expire(now))
        self._check_counters()
        return late

    def _check_requests(self, requests: Any, twins: Any) -> None:
        assert [self._twins[request] for request in requests] == list(twins)
        assert [request.state for request in requests] == [twin.state for twin in twins]

    def _check_counters(self) -> None:
        names = ("requests", "samples", "size_bytes", "slots", "idle_slots")
        for name in names:
            assert getattr(self.compiled, name) == getattr(self, name), name


def _refusal(
    offer: Callable[[Any, float], None], request: QueuedRequest, now: float
) -> QueueFullError | DeadlineError | None:
    try:
        offer(request, now)
    except (QueueFullError, DeadlineError) as error:
        return error
    return None


def _raise_alike(error: QueueFullError | DeadlineError, twin: Exception | None) -> NoReturn:
    assert type(twin) is type(error) and str(twin) == str(error)
    if isinstance(error, QueueFullError):
        assert isinstance(twin, QueueFullError) and twin.retry_seconds == error.retry_seconds
    raise error
