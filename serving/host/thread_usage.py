"""The kernel's counts of a thread: processor time, page faults, preemptions."""

import resource
from time import monotonic, thread_time
from typing import NamedTuple


class ThreadUsage(NamedTuple):
    """Resources that a thread used between two readings.

    Attributes:
        minor_faults: pages mapped without reading.
        major_faults: pages read from a disk.
        switches: involuntary context switches.
    """

    wall_seconds: float
    cpu_seconds: float
    minor_faults: int
    major_faults: int
    switches: int


# What is read; what it says is worked out where somebody wants to know.
Reading = tuple[float, float, resource.struct_rusage]


def read_usage() -> Reading:
    """The calling thread's counts: its clock, and getrusage(2); takes a microsecond.

    Processor time does not come from getrusage. The kernel updates that at ticks, milliseconds
    apart, so a batch between two ticks would seem to have waited.
    """
    return monotonic(), thread_time(), resource.getrusage(resource.RUSAGE_THREAD)


def usage_between(before: Reading, after: Reading) -> ThreadUsage:
    """The difference of two readings of one thread."""
    (began, ran, first), (ended, run, last) = before, after
    return ThreadUsage(
        ended - began,
        run - ran,
        last.ru_minflt - first.ru_minflt,
        last.ru_majflt - first.ru_majflt,
        last.ru_nivcsw - first.ru_nivcsw,
    )
