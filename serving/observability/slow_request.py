"""Decides why a request was slow.

The request's time is divided among the possible causes, and the largest part is the reason:

    decode, queue, encode     as measured
    page_faults               1 µs for each page mapped; all waiting, if pages were read from a disk
    preempted                 other waiting while its batch ran: the thread had no core, or no lock
    batch_mates               of the rest of the batch, the others' cost by the cost table; and the
                              writing of the others' responses before its own
    lookup, tower             the rest, in their proportion
    other                     unaccounted
"""

from dataclasses import dataclass

from kernels.wording import counted
from serving.observability.request_timeline import BatchFacts, RequestTimeline

# Time to map and clear a page of 4 KiB; measured 0.3 to 1 µs on the machines of docs/benchmarks.md.
_MINOR_FAULT_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class SlowCause:
    """Why a request was slow: a cause of `time_parts`, its seconds, and text for people."""

    phase: str
    seconds: float
    reason: str


def judge(request: RequestTimeline) -> SlowCause:
    """Finds the largest part of a request's time."""
    parts = time_parts(request)
    phase = max(parts, key=lambda name: parts[name])
    return SlowCause(phase, parts[phase], _reason(phase, parts[phase], request))


def time_parts(request: RequestTimeline) -> dict[str, float]:
    """A request's seconds by cause, which add up to the whole."""
    run = request.run_seconds
    waiting = faulting = mates = 0.0
    if request.batch is not None:
        usage = request.batch.usage
        waiting = min(run, max(0.0, usage.wall_seconds - usage.cpu_seconds))
        faulting = min(run - waiting, usage.minor_faults * _MINOR_FAULT_SECONDS)
        mates = (run - waiting - faulting) * _share_of_mates(request.batch)
    own = run - waiting - faulting - mates
    lookup = own * request.lookup_seconds / run if run else 0.0
    known = request.decode_seconds + request.queue_seconds + run + request.encode_seconds
    unknown = max(0.0, request.whole_seconds - known)
    others = request.batch is not None and request.batch.requests > 1
    from_disk = request.batch is not None and request.batch.usage.major_faults > 0
    return {
        "queue": request.queue_seconds,
        "batch_mates": mates + (unknown if others else 0.0),
        "decode": request.decode_seconds,
        "lookup": lookup,
        "tower": own - lookup,
        "encode": request.encode_seconds,
        "page_faults": faulting + (waiting if from_disk else 0.0),
        "preempted": 0.0 if from_disk else waiting,
        "other": 0.0 if others else unknown,
    }


def _share_of_mates(batch: BatchFacts) -> float:
    if batch.requests < 2 or batch.together_seconds <= 0.0:
        return 0.0
    return max(0.0, 1.0 - batch.alone_seconds / batch.together_seconds)


def _reason(phase: str, seconds: float, request: RequestTimeline) -> str:
    took = _ms(seconds)
    batch = request.batch
    if phase == "queue":
        return (
            f"waited {took} for a run slot; "
            f"{counted(request.requests_ahead, 'request')} waited before it"
        )
    if batch is None or phase in ("decode", "encode", "other"):
        return {
            "decode": f"reading {counted(request.samples, 'sample')} took {took}",
            "encode": f"writing the response took {took}",
        }.get(phase, f"{took} in no phase that is measured")
    usage = batch.usage
    if phase == "batch_mates":
        return (
            f"{took} for {counted(batch.samples - request.samples, 'sample')} of "
            f"{counted(batch.requests - 1, 'other')} in its batch; by the cost table it takes "
            f"{_ms(batch.alone_seconds)} alone, {_ms(batch.together_seconds)} with them"
        )
    if phase == "page_faults":
        return (
            f"{took} for {counted(usage.major_faults, 'page')} read from a disk and "
            f"{usage.minor_faults} mapped while its batch ran"
        )
    if phase == "preempted":
        return (
            f"its batch's thread ran {_ms(usage.cpu_seconds)} of {_ms(usage.wall_seconds)}: it was "
            f"put aside {counted(usage.switches, 'time')}, or waited for a lock"
        )
    own = counted(request.samples, "sample")
    if batch.samples != request.samples:
        own += f" of a batch of {batch.samples}"
    padded = f", run as {batch.padded_samples}" if phase == "tower" else ""
    return f"the {phase} of its {own}{padded} took {took}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
