"""Selects a queue's requests that run together, and those to drop so that others are answered."""

from serving.scheduler.batching import BatchingMode
from tests.reference.request_queue import Request, RequestQueue

# Joining must save this share of a request's cost alone, or shorten the total wait.
_WORTHWHILE_SAVING = 0.25
# A batch must score this many times the samples per second, before requests are dropped for it.
_WORTHWHILE_GAIN = 1.25


def batch_from(queue: RequestQueue[Request], position: int, now: float) -> tuple[int, int]:
    """Consecutive requests and samples of the batch at a position, if it began at `now`."""
    predicted, policy, waiting = queue.costs.predicted, queue.policy, queue.requests
    first = waiting[position]
    samples, seconds, earliest_end = first.samples, predicted(first.samples), first.latest_end
    end = position + 1
    while policy.mode is not BatchingMode.INLINE and end < len(waiting):
        request = waiting[end]
        together = samples + request.samples
        longer = predicted(together)
        earliest_end = min(earliest_end, request.latest_end)
        if together > policy.max_batch or now + longer > earliest_end:
            break
        # The request and those behind it gain what joining saves; those in the batch lose what it
        # adds. A large saving is always taken, because it raises throughput.
        alone, added = predicted(request.samples), longer - seconds
        saved = alone - added
        raises_throughput = saved >= _WORTHWHILE_SAVING * alone
        shortens_waits = saved * (len(waiting) - end) > added * (end - position)
        if policy.mode is BatchingMode.AUTO and not (raises_throughput or shortens_waits):
            break
        samples, seconds, end = together, longer, end + 1
    return end - position, samples


def gains_from_batching(queue: RequestQueue[Request]) -> bool:
    """True if joining all waiting requests saves enough of a further request's cost."""
    if queue.policy.mode is BatchingMode.INLINE or queue.samples >= queue.policy.max_batch:
        return False
    head = queue.requests[0].samples
    predicted = queue.costs.predicted
    added = predicted(queue.samples + head) - predicted(queue.samples)
    return added <= (1.0 - _WORTHWHILE_SAVING) * predicted(head)


def early_drops(queue: RequestQueue[Request], now: float, slots: int) -> int:
    """Number of first requests of a non-empty queue to drop, because they force a small batch.

    A request with little time left keeps its batch small, so the next request has as little left.
    Under overload the queue would then run only small batches, at a fraction of its throughput.

    As in the "early drop" of Nexus (Shen et al., SOSP 2019), the batch starts with a request that
    has time for a larger batch. Two conditions apply. The larger batch scores far more samples a
    second, and more requests wait than can be answered in time.
    """
    predicted, largest = queue.costs.predicted, queue.policy.max_batch
    head = queue.requests[0]
    alone, whole = predicted(head.samples), predicted(min(queue.samples, largest))
    if queue.policy.mode is BatchingMode.INLINE or not alone <= head.latest_end - now < whole:
        return 0
    if queue.samples < slots * largest and not _is_late(queue, now + alone, slots):
        return 0
    _, samples = batch_from(queue, 0, now)
    best, given_up = _WORTHWHILE_GAIN * samples / predicted(samples), 0
    for share in (1.0, 0.5, 0.25):
        enough = (
            at
            for at, request in enumerate(queue.requests)
            if request.latest_end - now >= max(share * whole, predicted(request.samples))
        )
        position = next(enough, 0)
        _, samples = batch_from(queue, position, now)
        rate = samples / predicted(samples)
        if rate > best:
            best, given_up = rate, position
    return given_up


def _is_late(queue: RequestQueue[Request], start: float, slots: int) -> bool:
    # True if the last deadline is missed even if all earlier requests run in full batches.
    samples = queue.samples
    for request in reversed(queue.requests):
        if request.latest_end != float("inf"):
            before, last = queue.full_batches(samples)
            return start + before / slots + last > request.latest_end
        samples -= request.samples
    return False
