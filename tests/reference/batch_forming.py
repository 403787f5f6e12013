"""Which requests of a queue run together, and which are dropped so that others are answered."""

from serving.scheduler.queued_request import BatchingMode
from tests.reference.request_queue import Request, RequestQueue

# Joining must save this share of a request's cost alone, or shorten the total wait.
_WORTHWHILE_SAVING = 0.25
# A batch must score this many times the samples per second, before requests are dropped for it.
_WORTHWHILE_GAIN = 1.25


def batch_from(queue: RequestQueue[Request], position: int, now: float) -> tuple[int, int]:
    """Forms the batch that starts with one of a queue's requests.

    Args:
        queue: not empty.
        position: of the batch's first request in the queue's order.
        now: when the batch would begin.

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
    """Whether a request should join a batch instead of running after it.

    The request and those behind it gain what joining saves; those in the batch lose what it adds.
    A large saving is always taken, because it raises throughput.

    Args:
        samples: of the request that may join.
        added: seconds that joining adds to the batch.
        requests: already in the batch.
        behind: requests that wait longer if it does not join, itself included.
    """
    alone = queue.costs.predicted(samples)
    saved = alone - added
    return saved >= _WORTHWHILE_SAVING * alone or saved * behind > added * requests


def gains_from_batching(queue: RequestQueue[Request]) -> bool:
    """Whether a batch of all waiting requests would gain from another request like the first.

    It gains if joining saves enough of what that request costs alone.
    """
    if queue.policy.mode is BatchingMode.INLINE or queue.samples >= queue.policy.max_batch:
        return False
    one = queue.head().samples
    predicted = queue.costs.predicted
    added = predicted(queue.samples + one) - predicted(queue.samples)
    return added <= (1.0 - _WORTHWHILE_SAVING) * predicted(one)


def early_drops(queue: RequestQueue[Request], now: float, slots: int) -> int:
    """How many of the first requests should be dropped, because they force a small batch.

    A request with little time left keeps its batch small, so the next request has as little left.
    Under overload the queue would then run only small batches, at a fraction of its throughput.

    As in the "early drop" of Nexus (Shen et al., SOSP 2019), the batch starts with a request that
    has time for a larger batch. Two conditions apply. The larger batch scores far more samples a
    second, and more requests wait than can be answered in time.

    Args:
        queue: not empty.
        now: when the batch would begin.
        slots: batches that may run at once.
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
    # Whether the last deadline is missed even if all earlier requests run in full batches.
    samples = queue.samples
    for place in reversed(queue.places):
        if place.request.latest_end != float("inf"):
            before, last = queue.full_batches(samples)
            return bool(start + before / slots + last > place.request.latest_end)
        samples -= place.request.samples
    return False
