"""Work beside requests: at low priority, and with pauses.

The priority of a thread keeps it off the cores while it computes without the interpreter lock
(hashing, copying, matrix products). A thread that holds the lock blocks requests at any priority:
they get it after the switch interval, 5 ms by default, which is therefore shortened meanwhile.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from sharded_infer.progress import Progress, no_progress

# On one core with requests at half of its capacity, beside a hashing thread: at 10 the requests'
# p99 was 2.4 times as long, at 19 as long as without.
LOWEST = 19
_SWITCH_SECONDS = 0.0005
_LONGEST_PAUSE = 0.05


def lower_priority(nice: int = LOWEST) -> None:
    """Lowers the priority of the calling thread, and of those that it starts, permanently.

    Args:
        nice: 0 to 19, as for nice(1); a thread whose priority is lower already keeps it.
    """
    thread = threading.get_native_id()
    # Linux has a priority for each thread; where it is refused, work is done all the same.
    with suppress(OSError):
        nice = max(nice, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def run_when_idle() -> None:
    """Runs the calling thread, and those that it starts, only on cores that nothing else wants.

    Not for threads that share a lock with requests, as the interpreter's: whatever runs would keep
    the lock from being released. At nice 19, a thread that wakes waits for the rest of a time
    slice, 3 ms; here it does not.
    """
    lower_priority()
    # Where it is refused, the priority is what there is.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def yielding_often() -> Iterator[None]:
    """Shortens the switch interval, so that other threads get the interpreter lock sooner.

    Not for two threads at once.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def paced(progress: Progress = no_progress) -> Progress:
    """A progress that pauses at each step for as long as the step took, to use at most half a core.

    Args:
        progress: called as well.
    """
    resumed = monotonic()

    def pause(what: str, done: int, total: int) -> None:
        nonlocal resumed
        progress(what, done, total)
        sleep(min(monotonic() - resumed, _LONGEST_PAUSE))
        resumed = monotonic()

    return pause
