"""Selects a queue's requests that run together, and those to drop so that others are answered."""

from serving.scheduler.queued_request import BatchingMode
from tests.reference.request_queue import Request, RequestQueue

# Joining must save this share of a request's cost alone, or shorten the total wait.
_WORTHWHILE_SAVING = 0.25
# A batch must score this many times the samples per second, before requests are dropped for it.
_WORTHWHILE_GAIN = 1.25


def batch_from(queue: RequestQueue[Request], position: int, now: float) -> tuple[int, int]:
    """Forms the batch that starts at a position of a non-empty queue, if it began at `now`.

    Returns:
        The number of requests, which are consecutive, and the number of samples.
    """
    predicted, policy, places = queue.costs.predicted, queue.policy, queue.places
    first: Request = places[position].request
    samples, seconds, earliest_end = first.samples, predicted(first.samples), first.latest_end
    end = position + 1
    while policy.mode is not BatchingMode.INLINE and end < len(places):
        request: Request = places[end].request
        together = samples + request.samples
        longer = predicted(together)
        earliest_end = min(earliest_end, request.latest_end)
        if together > policy.max_batch or now + longer > earliest_end:
            break
        behind, requests = len(places) - end, end - position
        if policy.mode is BatchingMode.AUTO and not is_worth_batching(
            queue, request.samples, added=longer - seconds, requests=requests, behind=behind
        ):
            break
        samples, seconds, end = together, longer, end + 1
    return end - position, samples


def is_worth_batching(
    queue: RequestQueue[Request], samples: int, *, added: float, requests: int, behind: int
) -> bool:
    """True if a request should join a batch instead of running after it.

    The request and the `behind - 1` requests that wait behind it gain what joining saves. The
    requests in the batch lose the `added` seconds. A large saving is always taken, because it
    raises throughput.
    """
    alone = queue.costs.predicted(samples)
    saved = alone - added
    return saved >= _WORTHWHILE_SAVING * alone or saved * behind > added * requests


def gains_from_batching(queue: RequestQueue[Request]) -> bool:
    """True if joining all waiting requests saves enough of a further request's cost."""
    if queue.policy.mode is BatchingMode.INLINE or queue.samples >= queue.policy.max_batch:
        return False
    one = queue.head().samples
    predicted = queue.costs.predicted
    added = predicted(queue.samples + one) - predicted(queue.samples)
    return added <= (1.0 - _WORTHWHILE_SAVING) * predicted(one)


def early_drops(queue: RequestQueue[Request], now: float, slots: int) -> int:
    """Number of first requests of a non-empty queue to drop, because they force a small batch.

    A request with little time left keeps its batch small, so the next request has as little left.
    Under overload the queue would then run only small batches, at a fraction of its throughput.

    As in the "early drop" of Nexus (Shen et al., SOSP 2019), the batch starts with a request that
    has time for a larger batch. Two conditions apply. The larger batch scores far more samples a
    second, and more requests wait than can be answered in time.
    """
    predicted, largest = queue.costs.predicted, queue.policy.max_batch
    head = queue.head()
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
            for at, (_, _, request) in enumerate(queue.places)
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
    for place in reversed(queue.places):
        if place.request.latest_end != float("inf"):
            before, last = queue.full_batches(samples)
            return bool(start + before / slots + last > place.request.latest_end)
        samples -= place.request.samples
    return False
