"""What the kernel counts of a thread: processor time, page faults, how often it was put aside."""

import resource
from time import monotonic, thread_time
from typing import NamedTuple


class ThreadUsage(NamedTuple):
    """What a thread has used over a while.

    Attributes:
        wall_seconds: of the monotonic clock.
        cpu_seconds: that it ran.
        minor_faults: pages that were mapped without reading.
        major_faults: pages that were read from a disk.
        switches: times that another thread was given its core although it had work.
    """

    wall_seconds: float
    cpu_seconds: float
    minor_faults: int
    major_faults: int
    switches: int


# What is read; what it says is worked out where somebody wants to know.
Reading = tuple[float, float, resource.struct_rusage]


def read_usage() -> Reading:
    """The calling thread's counts now, in a microsecond: its clock, and getrusage(2).

    Processor time is not getrusage's: the kernel brings that up to date at its ticks, milliseconds
    apart, and a batch that ran between two would look as if it had waited.
    """
    return monotonic(), thread_time(), resource.getrusage(resource.RUSAGE_THREAD)


def usage_between(before: Reading, after: Reading) -> ThreadUsage:
    """What a thread has used between two readings.

    Args:
        before: the earlier one.
        after: the later one, of the same thread.
    """
    (began, ran, first), (ended, run, last) = before, after
    return ThreadUsage(
        ended - began,
        run - ran,
        last.ru_minflt - first.ru_minflt,
        last.ru_majflt - first.ru_majflt,
        last.ru_nivcsw - first.ru_nivcsw,
    )
