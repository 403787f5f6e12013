"""The kernel's counts of a thread: processor time, page faults, preemptions."""

import resource
from time import monotonic, thread_time
from typing import NamedTuple


class ThreadUsage(NamedTuple):
    """Resources of a thread between two readings: pages mapped and read, involuntary switches."""

    wall_seconds: float
    cpu_seconds: float
    minor_faults: int
    major_faults: int
    switches: int


# Raw readings; differences are computed on demand.
Reading = tuple[float, float, resource.struct_rusage]


def read_usage() -> Reading:
    """Read the calling thread's clock and getrusage(2), in a microsecond.

    Processor time does not come from getrusage. The kernel updates that at ticks, milliseconds
    apart, so a batch between two ticks would seem to have waited.
    """
    return monotonic(), thread_time(), resource.getrusage(resource.RUSAGE_THREAD)


def usage_between(before: Reading, after: Reading) -> ThreadUsage:
    """Difference of two readings of one thread."""
    (began, ran, first), (ended, run, last) = before, after
    return ThreadUsage(
        ended - began,
        run - ran,
        last.ru_minflt - first.ru_minflt,
        last.ru_majflt - first.ru_majflt,
        last.ru_nivcsw - first.ru_nivcsw,
    )
