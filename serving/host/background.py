"""Work beside requests, at low priority and with pauses.

The priority of a thread keeps it off the cores while it computes without the interpreter lock
(hashing, copying, matrix products). A thread with the lock blocks requests at any priority for a
switch interval, 5 ms by default, so that is shortened meanwhile.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from time import monotonic, sleep, thread_time
from typing import TypeVar

from sharded_infer.progress import Progress, no_progress

Result = TypeVar("Result")

# On one core with requests at half of its capacity, beside a hashing thread: at 10 the requests'
# p99 was 2.4 times as long, at 19 as long as without.
LOWEST = 19
_SWITCH_SECONDS = 0.0005
_LONGEST_PAUSE = 0.05
# Of a core: with less, a thread that runs only when it is idle may hold the interpreter lock for
# long.
_LEAST_IDLE = 0.1
_PROBED_BYTES = 4 << 20


def lower_priority(nice: int = LOWEST) -> None:
    """Lower the priority of this thread and its children, permanently, to nice(1)'s 0 to 19."""
    thread = threading.get_native_id()
    # Linux has a priority for each thread; if it refuses, the work is done all the same.
    with suppress(OSError):
        nice = max(nice, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def run_when_idle() -> None:
    """Run the calling thread, and threads that it starts, only on cores that are otherwise idle.

    A thread that does not run releases no lock, such as the interpreter's: see
    `run_beside_requests`. At nice 19, a thread that wakes waits for the rest of a time slice, 3 ms;
    here it does not.
    """
    lower_priority()
    # If this is refused, the low priority remains.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def run_beside_requests(task: Callable[[], Result]) -> Result:
    """Run a task on a thread of its own: on idle cores alone, or at nice 19 if they are too busy.

    The threads of requests need the interpreter lock, which a thread on idle cores alone would keep
    for as long as other processes take the core.
    """
    with ThreadPoolExecutor(1, "beside-requests", run_when_idle) as thread:
        if thread.submit(_core_share).result() >= _LEAST_IDLE:
            return thread.submit(task).result()
    with ThreadPoolExecutor(1, "beside-requests", lower_priority) as thread:
        return thread.submit(task).result()


def _core_share() -> float:
    """The calling thread's share of a core during a hash, which needs no lock."""
    began, used = monotonic(), thread_time()
    # A thread that runs already may keep the core until the next tick.
    sleep(0.001)
    hashlib.sha256(bytes(_PROBED_BYTES))
    return (thread_time() - used) / (monotonic() - began)


@contextmanager
def yielding_often() -> Iterator[None]:
    """Let other threads get the interpreter lock sooner. Not for two threads at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def paced(progress: Progress = no_progress) -> Progress:
    """A progress that pauses at each step for as long as the step took: at most half a core."""
    resumed = monotonic()

    def pause(what: str, done: int, total: int) -> None:
        nonlocal resumed
        progress(what, done, total)
        sleep(min(monotonic() - resumed, _LONGEST_PAUSE))
        resumed = monotonic()

    return pause
